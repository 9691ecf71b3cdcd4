# A client on the library `websockets`. Arguments: URL, number of messages. Prints what happens.
import sys

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

url, messages = sys.argv[1], int(sys.argv[2])
try:
    with connect(url, compression="deflate", proxy=None) as socket:
        print("open", flush=True)
        for _ in range(messages):
            socket.send("hello")
        while True:
            socket.recv()
except InvalidStatus as refusal:
    print("refused", refusal.response.status_code, flush=True)
except ConnectionClosed as closed:
    print("closed", closed.rcvd.code, closed.rcvd.reason, flush=True)
