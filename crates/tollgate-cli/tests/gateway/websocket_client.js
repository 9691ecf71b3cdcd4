// A client on the library `ws`. Arguments: URL, number of messages. Prints what happens.
const WebSocket = require("ws");

const socket = new WebSocket(process.argv[2]);
socket.on("unexpected-response", (request, response) => {
  console.log("refused", response.statusCode);
  process.exit();
});
socket.on("open", () => {
  console.log("open");
  for (let sent = 0; sent < Number(process.argv[3]); sent++) socket.send("hello");
});
socket.on("close", (code, reason) => console.log("closed", code, reason.toString()));
socket.on("error", (error) => console.log("error", error.message));
