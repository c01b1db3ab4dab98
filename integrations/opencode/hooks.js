// The hooks of treesnap
import { spawn } from "node:child_process"

const LINE = ["treesnap", "hook", "opencode"]
const TIMEOUT_MS = 30000
const IS_STRICT = false

// Resolves with how the hook ended; never rejects. A hook that hangs is killed.
function tell(payload) {
  return new Promise((resolve) => {
    const ended = { code: null, stdout: "", stderr: "" }
    const timers = []
    const done = (code) => {
      timers.forEach(clearTimeout)
      resolve({ ...ended, code })
    }
    try {
      const child = spawn(LINE[0], LINE.slice(1), { cwd: payload.directory })
      timers.push(setTimeout(() => child.kill("SIGKILL"), TIMEOUT_MS))
      for (const name of ["stdout", "stderr"]) {
        child[name].setEncoding("utf8")
        child[name].on("data", (text) => (ended[name] += text))
      }
      child.on("error", () => done(null))
      child.on("close", (code) => done(code))
      // A process that the hook leaves behind may keep the pipes open.
      child.on("exit", (code) => timers.push(setTimeout(() => done(code), 200)))
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify(payload))
    } catch {
      done(null)
    }
  })
}

// Throws where the hook blocks, which keeps opencode from running the tool or sending the prompt.
async function ask(payload) {
  const { code, stdout, stderr } = await tell(payload)
  if (code === 2) throw new Error(stderr.trim() || "treesnap does not let this go on")
  if (code !== 0 && IS_STRICT) throw new Error(`${LINE[0]} could not be run: ${stderr.trim()}`)
  try {
    return JSON.parse(stdout).context
  } catch {
    return undefined
  }
}

export const Treesnap = async ({ directory }) => ({
  "chat.message": async (input, output) => {
    const texts = output.parts.filter((part) => part.type === "text")
    const context = await ask({
      event: "chat.message",
      directory,
      sessionID: input.sessionID,
      messageID: output.message?.id ?? input.messageID,
      prompt: texts.map((part) => part.text).join("\n"),
    })
    if (context && texts.length) texts.at(-1).text += `\n\n${context}`
  },
  "tool.execute.before": async (input, output) => {
    const { sessionID, callID, tool } = input
    await ask({ event: "tool.execute.before", directory, sessionID, callID, tool, args: output.args })
  },
  event: async ({ event }) => {
    const sessionID = event.properties?.sessionID ?? event.properties?.info?.id
    if (!sessionID || !["session.created", "session.idle"].includes(event.type)) return
    await tell({ event: event.type, directory, sessionID })
  },
})
