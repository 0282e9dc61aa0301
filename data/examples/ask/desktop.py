#!/usr/bin/env python3
# Asks on the desktop: openshell-sandbox --ask --ask-command data/examples/ask/desktop.py -- COMMAND
#
# It discloses each question to your notification service, which may show it on a locked screen and keep it.
# Whoever can press a button on your desktop can answer in your place. So can the command, if its policy grants
# the socket of the display or of D-Bus.
#
# It needs notify-send of libnotify 0.8 or later. A notification that is closed leaves the question to
# `openshell-sandbox approvals`.
import json
import subprocess
import sys

DECISIONS = ("once", "run", "deny", "deny_run")

question = json.load(sys.stdin)
notify = [
    "notify-send",
    "--wait",
    "--app-name=openshell-sandbox",
    "--action=once=Permit once",
    "--action=deny=Deny",
    # Characters of markup would be taken out.
    f"{question['sandbox']}: {question['site']}",
    question["text"].replace("&", "&amp;").replace("<", "&lt;"),
]
pressed = subprocess.run(notify, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
decision = pressed if pressed in DECISIONS else "pass"
print(json.dumps({"decision": decision, "id": question["id"]}))
