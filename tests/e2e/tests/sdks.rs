//! The vendors' clients of models, from the package registries, against a backend of the lab with
//! both interfaces.

#![expect(
    clippy::disallowed_methods,
    reason = "packages are installed outside the sandbox"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use lab::host::UID;
use lab::{Finished, Lab};

use super::gateway::Host;
use super::inference::{Backend, file as file_of_routes, resolved, route};
use super::mcp;

/// Returns the folder of packages installed by `words`, which get it as `FOLDER`. It exists while
/// the tests run.
pub(crate) fn installed(name: &str, words: &str) -> Packages {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Not in /tmp, which is writable in every sandbox.
    let folder = format!("/var/tmp/e2e-sdk-{name}-{}-{number}", std::process::id());
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder).unwrap();
    install(&folder, words);
    Packages(folder)
}

/// Installs packages by `words`, which get `folder` as `FOLDER`.
pub(crate) fn install(folder: &Path, words: &str) {
    let output = Command::new("sh")
        .args(["-ec", words])
        .env("FOLDER", folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{words}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Removes the installed packages after the last test.
pub(crate) struct Packages(pub(crate) PathBuf);

impl Drop for Packages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(lab: &Lab, packages: &Packages, words: &[&str]) -> Finished {
    run_by(lab, packages, "ok", words)
}

fn run_by(lab: &Lab, packages: &Packages, how: &str, words: &[&str]) -> Finished {
    let routes = format!("routes: [{}]", route(how, ""));
    let folder = packages.0.display();
    let policy = super::policy("{}") + &format!("filesystem_policy: {{read_only: [{folder}]}}\n");
    lab.sandbox(&policy)
        .args(&["--inference-routes", &file_of_routes(lab, &routes)])
        .env("PYTHONPATH", &folder.to_string())
        .env("NODE_PATH", &format!("{folder}/node_modules"))
        .run(words)
}

const EXPECTED: &str = "chat Hello there. 22
chat stream Hello there. 22
chat tool get_weather Oslo Hello there.
responses Hello there.
responses stream Hello there.
embeddings 1.5
models m1
messages Hello there. 22
messages stream Hello there.
messages tool get_weather Oslo Hello there.";

const PYTHON: &str = r#"
import json, openai, anthropic
client, model = openai.OpenAI(max_retries=0), 'gpt-x'
messages = [{'role': 'user', 'content': 'hi'}]
answer = client.chat.completions.create(model=model, messages=messages)
print('chat', answer.choices[0].message.content, answer.usage.completion_tokens)
chunks = list(client.chat.completions.create(model=model, messages=messages, stream=True))
print('chat stream', ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices), chunks[-1].usage.completion_tokens)
tools = [{'type': 'function', 'function': {'name': 'get_weather', 'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}}}}}]
answer = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0].message
call = answer.tool_calls[0]
after = messages + [answer.model_dump(exclude_none=True), {'role': 'tool', 'tool_call_id': call.id, 'content': 'rain'}]
print('chat tool', call.function.name, json.loads(call.function.arguments)['city'], client.chat.completions.create(model=model, messages=after, tools=tools).choices[0].message.content)
print('responses', client.responses.create(model=model, input='hi').output_text)
with client.responses.stream(model=model, input='hi') as stream:
    print('responses stream', ''.join(event.delta for event in stream if event.type == 'response.output_text.delta'))
print('embeddings', client.embeddings.create(model=model, input='hi', encoding_format='float').data[0].embedding[1])
print('models', client.models.list().data[0].id)
claude = anthropic.Anthropic(max_retries=0)
answer = claude.messages.create(model='claude-x', max_tokens=10, messages=messages)
print('messages', answer.content[0].text, answer.usage.output_tokens)
with claude.messages.stream(model='claude-x', max_tokens=10, messages=messages) as stream: print('messages stream', ''.join(stream.text_stream))
tools = [{'name': 'get_weather', 'input_schema': {'type': 'object', 'properties': {'city': {'type': 'string'}}}}]
answer = claude.messages.create(model='claude-x', max_tokens=10, messages=messages, tools=tools)
use = answer.content[0]
after = messages + [{'role': 'assistant', 'content': [use.model_dump(exclude_none=True)]}, {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': use.id, 'content': 'rain'}]}]
print('messages tool', use.name, use.input['city'], claude.messages.create(model='claude-x', max_tokens=10, messages=after, tools=tools).content[0].text)
"#;

#[test]
fn the_python_clients_of_openai_and_anthropic_stream_call_tools_and_count() {
    let packages = installed(
        "python",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" openai anthropic",
    );
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let finished = run(&lab, &packages, &["/usr/bin/python3", "-c", PYTHON]);
    assert_eq!(finished.ok(), EXPECTED, "{finished:?}");
    assert!(
        backend
            .seen()
            .iter()
            .all(|seen| seen[2]["authorization"] == "Bearer sk-of-the-operator"),
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("tokens:11/22]").len(),
        10,
        "{}",
        finished.log
    );
}

const NODE: &str = r"
const OpenAI = require('openai').default || require('openai'), Anthropic = require('@anthropic-ai/sdk').default || require('@anthropic-ai/sdk');
const { ProxyAgent } = require('undici');
const fetchOptions = { dispatcher: new ProxyAgent(process.env.HTTPS_PROXY) };
(async () => {
  const client = new OpenAI({ maxRetries: 0, fetchOptions }), model = 'gpt-x', messages = [{ role: 'user', content: 'hi' }];
  let answer = await client.chat.completions.create({ model, messages });
  console.log('chat', answer.choices[0].message.content, answer.usage.completion_tokens);
  let text = '', last;
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) { text += chunk.choices[0]?.delta?.content || ''; last = chunk; }
  console.log('chat stream', text, last.usage.completion_tokens);
  let tools = [{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];
  const message = (await client.chat.completions.create({ model, messages, tools })).choices[0].message, call = message.tool_calls[0];
  answer = await client.chat.completions.create({ model, tools, messages: [...messages, message, { role: 'tool', tool_call_id: call.id, content: 'rain' }] });
  console.log('chat tool', call.function.name, JSON.parse(call.function.arguments).city, answer.choices[0].message.content);
  console.log('responses', (await client.responses.create({ model, input: 'hi' })).output_text);
  text = '';
  for await (const event of await client.responses.create({ model, input: 'hi', stream: true })) if (event.type === 'response.output_text.delta') text += event.delta;
  console.log('responses stream', text);
  console.log('embeddings', (await client.embeddings.create({ model, input: 'hi', encoding_format: 'float' })).data[0].embedding[1]);
  console.log('models', (await client.models.list()).data[0].id);
  const claude = new Anthropic({ maxRetries: 0, fetchOptions }), ask = { model: 'claude-x', max_tokens: 10 };
  answer = await claude.messages.create({ ...ask, messages });
  console.log('messages', answer.content[0].text, answer.usage.output_tokens);
  console.log('messages stream', await claude.messages.stream({ ...ask, messages }).finalText());
  tools = [{ name: 'get_weather', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }];
  const use = (await claude.messages.create({ ...ask, messages, tools })).content[0];
  answer = await claude.messages.create({ ...ask, tools, messages: [...messages, { role: 'assistant', content: [use] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'rain' }] }] });
  console.log('messages tool', use.name, use.input.city, answer.content[0].text);
})().catch(e => console.log(String(e), e.cause));
";

#[test]
fn the_node_clients_of_openai_and_anthropic_stream_call_tools_and_count() {
    // Node's fetch supports no proxy before 24, so the proxy agent of its authors is used.
    let packages = installed(
        "node",
        "cd \"$FOLDER\" && npm install --silent --no-audit --no-fund openai @anthropic-ai/sdk \
         undici@6",
    );
    let lab = Lab::with_web();
    let _backend = Backend::start(&lab);
    let finished = run(&lab, &packages, &["/usr/bin/node", "-e", NODE]);
    assert_eq!(finished.ok(), EXPECTED, "{finished:?}");
    assert_eq!(
        finished.logged("tokens:11/22]").len(),
        10,
        "{}",
        finished.log
    );
}

/// An endpoint of MCP in the preset's place for more. Lists are not filtered, so that the model knows of a
/// tool that it may not call.
const LAB: &str = "  lab:
    endpoints:
      - host: web.test
        port: 8080
        allowed_ips: [10.99.0.1]
        path: /mcp
        protocol: mcp
        enforcement: enforce
        mcp: {filter_lists: false}
        rules:
          - {allow: {method: initialize}}
          - {allow: {method: server/discover}}
          - {allow: {method: tools/list}}
          - {allow: {method: prompts/list}}
          - {allow: {method: resources/list}}
          - {allow: {method: resources/templates/list}}
          - {allow: {method: tools/call, tool: get_issue}}
    binaries: [{path: \"/**\"}]
";

/// Runs an agent with its preset in a project and a home for one turn, in which its model tells it
/// to write a file there, and for one with two tools of a server of MCP, of which the policy permits
/// one. Then tries to write to what the agent takes programs from. The turn with the tools is
/// repeated in a sandbox that has its policy from a gateway.
fn check_agent(package: &str, preset: &str, [write, ask]: [&str; 2], kept: &[&str]) {
    let install = format!(
        "cd \"$FOLDER\" && npm install --silent --no-audit --no-fund {package} {}",
        mcp::JAVASCRIPT
    );
    let packages = installed(preset, &install);
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let server = mcp::server(&lab, &packages, mcp::Server::Javascript, &[]);
    let [home, project] = ["home", "project"].map(|name| {
        let folder = lab.folder(name);
        std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
        folder.display().to_string()
    });
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../data/presets/{preset}.yaml"));
    let packages = packages.0.display().to_string();
    let preset = std::fs::read_to_string(file)
        .unwrap()
        .replace("~/", &format!("{home}/"))
        .replace("  read_only:", &format!("  read_only:\n    - {packages}"));
    let policy = format!("process: {{run_as_user: \"{UID}\"}}\n{preset}{LAB}");
    let writes: Vec<_> = kept
        .iter()
        .map(|path| format!("(echo x > {path} || echo refused {path})\n"))
        .collect();
    let environment = format!("export HOME={home} PATH={packages}/node_modules/.bin:$PATH");
    let script = format!(
        "{environment}
         {write} </dev/null || exit; cat written; {ask} </dev/null || exit
         cd {home}; {}",
        writes.concat().replace("$WORKDIR", &project)
    );
    let routes = file_of_routes(&lab, &format!("routes: [{}]", route("agent", "")));
    let finished = lab
        .sandbox(&policy)
        .args(&["--inference-routes", &routes, "--workdir", &project])
        .sh(&script);
    assert!(finished.ok().contains("by a model"), "{finished:?}");
    let said = [
        "issue 7",
        "-31403",
        "tool delete_repo is not permitted by policy (request_not_in_rules)",
        "Hello there.",
    ];
    check_tools(&finished, &said, 1);
    let host = Host::of_agents(&lab, &policy, vec![resolved("agent")]);
    let by_gateway = host
        .sandbox(&lab)
        .args(&["--workdir", &project])
        .env("ANTHROPIC_BASE_URL", "https://inference.local")
        .env("ANTHROPIC_AUTH_TOKEN", "any")
        .sh(&format!("{environment}\n{ask} </dev/null"));
    assert_eq!(by_gateway.code(), 0, "{by_gateway:?}");
    // A gateway cannot say `filter_lists: false`, so the agent knows nothing of the other tool.
    check_tools(&by_gateway, &["issue 7", "Hello there."], 2);
    assert_eq!(server.called(), "get_issue\nget_issue\n", "{by_gateway:?}");
    for path in kept {
        assert!(
            finished
                .stdout
                .contains(&format!("refused {}", path.replace("$WORKDIR", &project))),
            "{finished:?}"
        );
    }
    println!(
        "{}\n{}\n{}\nby a gateway:\n{}",
        finished.stdout,
        finished.stderr,
        finished.logged("[route:").join("\n"),
        by_gateway.stdout
    );
    let keys: Vec<_> = backend
        .seen()
        .iter()
        .map(|seen| seen[2]["authorization"].clone())
        .collect();
    assert!(
        keys.len() >= 2 && keys.iter().all(|key| key == "Bearer sk-of-the-operator"),
        "{keys:?}"
    );
    // Nothing is left of the placeholders.
    for path in kept {
        let path = path.replace("$WORKDIR/", &format!("{project}/"));
        assert!(!Path::new(&home).join(&path).exists(), "{path}");
    }
}

/// Checks a turn that asked for two tools, of which one answered, by what the agent has `said` to its
/// end. The log is that of `turns`, in the first of which the other tool was refused.
fn check_tools(finished: &Finished, said: &[&str], turns: usize) {
    for said in said {
        assert!(finished.stdout.contains(said), "{said}: {finished:?}");
    }
    for (tool, calls) in [("get_issue", turns), ("delete_repo", 1)] {
        let line = format!("-> web.test:8080/mcp {tool} [policy:lab engine:l7]");
        assert_eq!(finished.logged(&line).len(), calls, "{line}: {finished:?}");
    }
}

#[test]
fn claude_code_completes_a_turn_with_its_preset_and_changes_nothing_that_it_runs() {
    check_agent(
        "@anthropic-ai/claude-code",
        "claude-code",
        [
            "claude -p \"write into $PWD a file\" --permission-mode acceptEdits",
            "claude -p 'ask the lab' --mcp-config '{\"mcpServers\": {\"lab\": {\"type\": \"http\", \"url\": \
             \"http://web.test:8080/mcp\"}}}' --strict-mcp-config --allowedTools mcp__lab__get_issue,mcp__lab__delete_repo \
             --output-format stream-json --verbose",
        ],
        &[
            ".claude.json",
            ".claude/settings.json",
            ".claude/.config.json",
            ".claude/remote-settings.json",
            ".claude/.credentials.json",
            ".claude/statusline.py",
            ".claude/hooks/x",
            ".claude/new/x",
            "$WORKDIR/.mcp.json",
            "$WORKDIR/.claude/settings.local.json",
        ],
    );
}

#[test]
fn codex_completes_a_turn_with_its_preset_and_changes_nothing_that_it_runs() {
    check_agent(
        "@openai/codex",
        "codex",
        [
            "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c \
             model=gpt-x -c openai_base_url=https://inference.local/v1 \"write into $PWD a file\"",
            "codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c model=gpt-x -c \
             openai_base_url=https://inference.local/v1 -c mcp_servers.lab.url=http://web.test:8080/mcp 'ask the lab'",
        ],
        &[
            ".codex/config.toml",
            ".codex/hooks.json",
            ".codex/.env",
            ".codex/environments.toml",
            ".codex/AGENTS.override.md",
            ".codex/agents/x",
            ".codex/rules/x",
            ".codex/skills/x",
            "$WORKDIR/.codex/config.toml",
            "$WORKDIR/.agents/skills",
        ],
    );
}
