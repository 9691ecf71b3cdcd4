# A client on the library `websockets`. Arguments: URL, number of messages. Prints what happens.
import sys

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

url, messages = sys.argv[1], int(sys.argv[2])
try:
    socket = connect(url, compression="deflate", proxy=None)
except InvalidStatus as refusal:
    print("refused", refusal.response.status_code, flush=True)
    sys.exit()
print("open", flush=True)
try:
    for _ in range(messages):
        socket.send("hello")
    while True:
        socket.recv()
except ConnectionClosed as closed:
    print("closed", closed.rcvd.code, closed.rcvd.reason, flush=True)
