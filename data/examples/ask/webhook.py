#!/usr/bin/env python3
# Tells a chat: ASK_WEBHOOK=https://… openshell-sandbox --ask --ask-command data/examples/ask/webhook.py -- COMMAND
#
# It discloses each question to the service behind ASK_WEBHOOK, and to everybody who reads that channel: program, host,
# path, query and arguments.
# Nobody can answer in your place, because it takes no answer from the chat: `openshell-sandbox approvals` does. A chat
# that answers must be out of the command's reach: one in which an agent can write is none.
import json
import os
import sys
import urllib.request

question = json.load(sys.stdin)
message = f"The sandbox {question['sandbox']} asks ({question['id']}):\n{question['text']}"
request = urllib.request.Request(
    os.environ["ASK_WEBHOOK"],
    data=json.dumps({"text": message}).encode(),
    headers={"Content-Type": "application/json"},
)
urllib.request.urlopen(request, timeout=10).close()
print(json.dumps({"decision": "pass"}))
