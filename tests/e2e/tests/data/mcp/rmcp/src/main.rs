//! A client of MCP, which prints what it sees, and a server, by the SDK in Rust: `rmcp-pair URL legacy|auto|new`
//! and `rmcp-pair serve ADDRESS:PORT HOST`. The server appends the names of called tools to RECORD.

use std::io::Write as _;

use rmcp::handler::server::tool::InputResponses as Answers;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::*;
use rmcp::service::{RequestContext, RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{
    ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, ServerHandler, schemars, tool,
    tool_handler, tool_router,
};
use serde_json::{Value, json};

#[derive(Clone)]
struct Lab;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Issue {
    number: u32,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Search {
    query: String,
}

fn called(tool: &str) {
    let path = std::env::var("RECORD").unwrap();
    let mut record = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    writeln!(record, "{tool}").unwrap();
}

fn said(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

#[tool_router]
impl Lab {
    #[tool(description = "Says what an issue is")]
    async fn get_issue(
        &self,
        Parameters(issue): Parameters<Issue>,
    ) -> Result<CallToolResult, ErrorData> {
        called("get_issue");
        Ok(said(format!("issue {}", issue.number)))
    }

    #[tool(description = "Searches")]
    async fn search_code(
        &self,
        Parameters(search): Parameters<Search>,
    ) -> Result<CallToolResult, ErrorData> {
        Ok(said(format!("found {}", search.query)))
    }

    #[tool(description = "Asks for a name, in revisions without sessions")]
    async fn ask_name(&self, Answers(answers): Answers) -> Result<CallToolResponse, ErrorData> {
        let answer = answers.as_ref().and_then(|answers| answers.get("name"));
        if let Some(name) = answer.and_then(|answer| answer["content"]["name"].as_str()) {
            return Ok(said(format!("hello {name}")).into());
        }
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let question = ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: "Who?".into(),
            requested_schema: serde_json::from_value(schema).unwrap(),
        });
        let mut requests = InputRequests::new();
        requests.insert("name".to_owned(), InputRequest::Elicitation(question));
        Ok(InputRequiredResult::new(Some(requests), None).into())
    }

    #[tool(description = "Deletes")]
    async fn delete_repo(&self) -> Result<CallToolResult, ErrorData> {
        called("delete_repo");
        Ok(said("deleted".to_owned()))
    }
}

#[tool_handler]
impl ServerHandler for Lab {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

#[derive(Clone)]
struct Agent;

impl ClientHandler for Agent {
    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        info.capabilities = ClientCapabilities::builder().enable_elicitation().build();
        info
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "agent"})))
    }
}

async fn attempt(client: &RunningService<RoleClient, Agent>, tool: &'static str, arguments: Value) {
    let mut call = CallToolRequestParams::new(tool);
    call.arguments = arguments.as_object().cloned();
    match client.call_tool(call).await {
        Ok(result) => {
            let result = serde_json::to_value(result).unwrap();
            println!(
                "{tool} -> {}",
                result["content"][0]["text"].as_str().unwrap_or("?")
            );
        }
        Err(ServiceError::McpError(error)) => {
            println!("{tool} refused: {} {}", error.code.0, error.message)
        }
        Err(error) => println!("{tool} failed: {error}"),
    }
}

async fn ask(url: String, mode: &str) {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match mode {
        "legacy" => ClientLifecycleMode::Initialize,
        "auto" => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: None,
        },
        _ => ClientLifecycleMode::Discover { preferred_versions },
    };
    let transport = StreamableHttpClientTransport::from_uri(url);
    let client = Agent
        .serve_with_lifecycle(transport, lifecycle)
        .await
        .unwrap();
    let tools = client.list_all_tools().await.unwrap();
    let mut names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
    names.sort();
    println!("tools: {}", names.join(" "));
    attempt(&client, "get_issue", json!({"number": 7})).await;
    attempt(&client, "delete_repo", json!({})).await;
    attempt(&client, "search_code", json!({"query": "y"})).await;
    attempt(&client, "ask_name", json!({})).await;
    attempt(&client, "get_issue", json!({"number": 8})).await;
    client.cancel().await.unwrap();
    println!("end");
}

async fn serve(address: &str, host: String) {
    let config = StreamableHttpServerConfig::default().with_allowed_hosts([host]);
    let service: StreamableHttpService<Lab, LocalSessionManager> =
        StreamableHttpService::new(|| Ok(Lab), Default::default(), config);
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    println!("starts");
    axum::serve(listener, router).await.unwrap();
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [word, address, host] if word == "serve" => serve(address, host.clone()).await,
        [url, mode] => ask(url.clone(), mode).await,
        _ => panic!("rmcp-pair serve ADDRESS:PORT HOST, or rmcp-pair URL legacy|auto|new"),
    }
}
