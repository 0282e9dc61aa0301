#!/usr/bin/env python3
# Asks on the desktop: openshell-sandbox --ask --ask-command data/examples/ask/desktop.py -- COMMAND
#
# It discloses each question to your notification service, which may show it on a locked screen and keep it.
# Whoever can press a button on your desktop can answer in your place. So can the command, if its policy grants
# the socket of the display or of D-Bus.
#
# It needs notify-send of libnotify 0.8 or later, whose arguments other programs of this machine can read. A notification
# may be cut, so a long question can only be denied here, and so can one with a mark that takes a second look.
# `openshell-sandbox approvals` has the whole question, also after a notification was closed.
import json
import subprocess
import sys

HARMLESS = {"new_site", "writes", "body"}
LONGEST = 400

question = json.load(sys.stdin)
may_permit = len(question["text"]) <= LONGEST and HARMLESS.issuperset(question["marks"])
notify = [
    "notify-send",
    "--wait",
    "--app-name=openshell-sandbox",
    *(["--action=once=Permit once"] if may_permit else []),
    "--action=deny=Deny",
    # Characters of markup would be taken out.
    f"{question['sandbox']}: {question['site']}",
    question["text"].replace("&", "&amp;").replace("<", "&lt;"),
]
pressed = subprocess.run(notify, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
offered = ("once", "deny") if may_permit else ("deny",)
print(json.dumps({"decision": pressed if pressed in offered else "pass", "id": question["id"]}))
