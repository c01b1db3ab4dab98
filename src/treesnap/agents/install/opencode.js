// treesnap's hook for opencode, made by treesnap: 'snap agent uninstall opencode' removes this file
import { spawn } from "node:child_process"

const LINE = "{LINE}"
const TIMEOUT_MS = "{TIMEOUT_MS}"
const IS_STRICT = "{IS_STRICT}"

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

// Returns what the hook replied, and shows its warning.
function replied({ stdout }, client) {
  let reply = {}
  try {
    reply = JSON.parse(stdout) ?? {}
  } catch {} // it said nothing
  if (reply.warning) {
    const body = { message: reply.warning, variant: "warning" }
    // Not waited for: opencode itself shows it, and may be waiting for this plugin.
    client?.tui?.showToast?.({ body })?.catch?.(() => {})
  }
  return reply
}

// Throws where the hook blocks, which keeps opencode from running the tool or sending the prompt.
async function ask(payload, client) {
  const ended = await tell(payload)
  const reason = ended.stderr.trim()
  if (ended.code === 2) throw new Error(reason || "treesnap does not let this go on")
  if (ended.code !== 0 && IS_STRICT) throw new Error(`${LINE[0]} could not be run: ${reason}`)
  return replied(ended, client).context
}

// The session of which the work of another one is: an agent that a session starts has its own.
const parents = new Map()
const topmost = (id) => (parents.has(id) ? topmost(parents.get(id)) : id)

export const Treesnap = async ({ client, directory }) => ({
  "chat.message": async (input, output) => {
    if (parents.has(input.sessionID)) return // the model wrote it, for an agent that it started
    const texts = output.parts.filter((part) => part.type === "text")
    const payload = {
      event: "chat.message",
      directory,
      sessionID: input.sessionID,
      messageID: output.message?.id ?? input.messageID,
      prompt: texts.map((part) => part.text).join("\n"),
    }
    const context = await ask(payload, client)
    if (context && texts.length) texts.at(-1).text += `\n\n${context}`
  },
  "tool.execute.before": async (input, output) => {
    const { callID, tool } = input
    const sessionID = topmost(input.sessionID)
    const payload = { event: "tool.execute.before", directory, sessionID, callID, tool }
    await ask({ ...payload, args: output.args }, client)
  },
  "tool.execute.after": async (input) => {
    const { callID, tool, args } = input
    const sessionID = topmost(input.sessionID)
    const payload = { event: "tool.execute.after", directory, sessionID, callID, tool, args }
    replied(await tell(payload), client)
  },
  event: async ({ event }) => {
    const sessionID = event.properties?.sessionID ?? event.properties?.info?.id
    if (!sessionID || !["session.created", "session.idle"].includes(event.type)) return
    const parentID = event.properties?.info?.parentID
    if (parentID && parentID !== sessionID) parents.set(sessionID, parentID)
    if (parents.has(sessionID)) return // its session begins and ends by itself
    replied(await tell({ event: event.type, directory, sessionID }), client)
  },
})
