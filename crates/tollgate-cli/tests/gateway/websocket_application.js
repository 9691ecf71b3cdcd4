// A WebSocket application on the library `ws`: it sends messages back, and records what it receives.
// Argument: the port.
//
// /echo      messages are sent back
// /silent    nothing is sent back
// /stream?N  N messages of one byte are sent at once
// /page      a page for browsers, see `websocket_page.html`; they report to /report?TEXT
// /_seen     the record so far
const fs = require("fs");
const http = require("http");
const path = require("path");
const { WebSocketServer } = require("ws");

const seen = { opened: 0, open: 0, messages: 0, bytes: 0, closes: [], reports: [] };

function answer(request, response) {
  const [target, query] = request.url.split("?");
  if (target === "/_seen") return response.end(JSON.stringify(seen));
  if (target === "/report") {
    seen.reports.push(decodeURIComponent(query));
    return response.end("reported");
  }
  response.setHeader("content-type", "text/html");
  response.end(fs.readFileSync(path.join(__dirname, "websocket_page.html")));
}

const server = http.createServer(answer);
const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 }, maxPayload: 32 << 20 });
sockets.on("connection", (socket, request) => {
  seen.opened += 1;
  seen.open += 1;
  socket.on("error", () => {});
  socket.on("message", (message, isBinary) => {
    seen.messages += 1;
    seen.bytes += message.length;
    if (request.url.startsWith("/echo")) socket.send(message, { binary: isBinary });
  });
  socket.on("close", (code, reason) => {
    seen.open -= 1;
    // The last thousand are enough for every test.
    seen.closes = seen.closes.slice(-999).concat({ code, reason: reason.toString() });
  });
  if (request.url.startsWith("/stream")) {
    for (let sent = 0; sent < Number(request.url.split("?")[1]); sent++) socket.send("x");
  }
});
server.listen({ port: Number(process.argv[2]), host: "127.0.0.1", backlog: 4096 });
