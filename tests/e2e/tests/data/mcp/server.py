"""A server of MCP with tools, a resource and a prompt: `server.py ADDRESS PORT [json]`."""
import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel

server = MCPServer("lab", log_level="ERROR")


class Name(BaseModel):
    name: str


@server.tool()
def get_issue(number: int) -> str:
    return f"issue {number}"


@server.tool()
async def search_code(query: str, ctx: Context) -> str:
    for step in range(1, 3):
        await ctx.report_progress(step, 2)
    return f"found {query}"


@server.tool()
async def ask_name(ctx: Context) -> str:
    answer = await ctx.elicit("Who?", Name)
    return f"hello {answer.data.name}"


@server.tool()
def delete_repo(name: str) -> str:
    print(f"REPO DELETED: {name}", flush=True)
    return "deleted"


@server.resource("docs://one")
def one() -> str:
    return "the first"


@server.resource("secret://two")
def two() -> str:
    return "the second"


@server.prompt()
def review(text: str) -> str:
    return f"review {text}"


@server.prompt()
def destroy(text: str) -> str:
    return f"destroy {text}"


print("starts", flush=True)
server.run(
    "streamable-http",
    host=sys.argv[1],
    port=int(sys.argv[2]),
    json_response="json" in sys.argv,
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
