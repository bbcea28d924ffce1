"""Run by Python in the container, where the server listens: sends one HTTP request and prints what came back, as JSON.

Standard input: {"method", "path", "body"} and, to go away early, "leave_after": number of events. Output: status, text,
seconds, and for each line of an event stream its data and the seconds since the request.
"""

import http.client
import json
import sys
import time

task = json.load(sys.stdin)
connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=280)
began = time.monotonic()
connection.request(task["method"], task["path"], task["body"])
response = connection.getresponse()
text, events = "", []
while line := response.readline().decode():
    text += line
    if line.startswith("data: "):
        events.append((time.monotonic() - began, json.loads(line[6:])))
        if len(events) == task.get("leave_after"):
            break
connection.close()
print(json.dumps({"status": response.status, "text": text, "events": events, "seconds": time.monotonic() - began}))
