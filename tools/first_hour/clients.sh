# clients.sh: how each coding agent is told of a server, and asked to make a file. Uses $PLAYED, $TOKEN and $MODEL.

claude() {
    set_ 'export ANTHROPIC_BASE_URL=$PLAYED ANTHROPIC_AUTH_TOKEN=$TOKEN ANTHROPIC_MODEL=$MODEL ANTHROPIC_DEFAULT_HAIKU_MODEL=$MODEL'
    set_ 'export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1'
    run "claude -p 'Make the file.' --tools Bash --allowedTools Bash"
}

codex() {
    words "" "\`~/.codex/config.toml\`:"
    mkdir -p ~/.codex
    cat >~/.codex/config.toml <<CONFIG
model = "$MODEL"
model_provider = "etude"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.etude]
name = "etude"
base_url = "$PLAYED/v1"
env_key = "ETUDE_TOKEN"
wire_api = "responses"
CONFIG
    run "cat ~/.codex/config.toml"
    set_ 'export ETUDE_TOKEN=$TOKEN'
    run "codex exec --skip-git-repo-check 'Make the file.'"
}

opencode() {
    cat >opencode.json <<CONFIG
{
  "provider": {
    "etude": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$PLAYED/v1", "apiKey": "$TOKEN"},
      "models": {"$MODEL": {}}
    }
  },
  "permission": "allow",
  "agent": {"build": {"tools": {"*": false, "bash": true}}}
}
CONFIG
    run "cat opencode.json"
    run 'opencode run --model etude/$MODEL "Make the file."'
}

mini() {
    set_ 'export OPENAI_API_BASE=$PLAYED/v1 OPENAI_API_KEY=$TOKEN MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors'
    run 'mini -m openai/$MODEL -t "Make the file." -y --exit-immediately -o run.json'
}

acpx() {
    words "" "acpx drives agents that speak the Agent Client Protocol, here \`etude acp\`:"
    set_ 'export ETUDE_TOKEN=$TOKEN'
    run 'etude init --endpoint $PLAYED/v1 --model $MODEL --key-env ETUDE_TOKEN'
    run "acpx --approve-all --agent 'etude acp' exec 'Make the file.'"
}
