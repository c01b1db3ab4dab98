// Adds what a hook cannot do to treesnap's hooks: slash commands, and a server for the model.
import { Treesnap } from "./hooks.js"

const COMMANDS = {
  "snap-rewind": {
    "description": "Go back to before the newest prompt, N prompts or a step",
    "template": "snap rewind $ARGUMENTS"
  },
  "snap-undo": {
    "description": "Undo the newest restore or rewind",
    "template": "snap undo $ARGUMENTS"
  },
  "snap-redo": {
    "description": "Undo an undo",
    "template": "snap redo $ARGUMENTS"
  },
  "snap-list": {
    "description": "List the snapshots of this directory",
    "template": "snap list $ARGUMENTS"
  }
}
const SERVER = {
  "type": "local",
  "command": [
    "treesnap",
    "mcp"
  ]
}

export const TreesnapPackage = async (input) => ({
  ...(await Treesnap(input)),
  config: async (config) => {
    config.command = { ...COMMANDS, ...config.command }
    config.mcp = { treesnap: SERVER, ...config.mcp }
  },
})
