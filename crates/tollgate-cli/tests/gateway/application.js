// An application on Node: it counts what it receives, and answers in all the ways that a proxy has to pass on.
// Argument: the port.
const crypto = require("crypto");
const http = require("http");

let requests = 0;
let errors = 0;
// Streams of server-sent events that wait for the next event.
const streams = new Map();

// A request counts when its body has ended.
function body(request, done) {
  let bytes = 0;
  request.on("data", (piece) => (bytes += piece.length));
  request.on("end", () => {
    requests += 1;
    done(bytes);
  });
}

function answer(request, response) {
  const path = request.url.split("?")[0];
  if (path === "/_seen") return response.end(JSON.stringify({ requests, errors }));
  response.setHeader("x-application", "yes");
  if (path === "/trailers") return body(request, () => trailers(request, response));
  if (path === "/events") return events(request.url.split("?")[1], response);
  if (path === "/next") return next(request.url.split("?")[1], response);
  if (path === "/head") return body(request, (bytes) => head(request, response, bytes));
  return body(request, () => {
    response.setHeader("content-length", Buffer.byteLength(request.url));
    response.end(request.url);
  });
}

function head(request, response, bytes) {
  const { method, url, rawHeaders, rawTrailers } = request;
  response.end(JSON.stringify({ method, target: url, fields: rawHeaders, trailers: rawTrailers, bytes }));
}

function trailers(request, response) {
  response.writeHead(200, { trailer: "x-sum" });
  response.write("hello");
  response.addTrailers({ "x-sum": request.trailers["x-sum"] || "none" });
  response.end();
}

function events(name, response) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.flushHeaders();
  streams.set(name, { response, sent: 0 });
}

// Sends the next event of a stream, or ends it after the third.
function next(name, response) {
  const stream = streams.get(name);
  if (stream.sent === 3) stream.response.end();
  else stream.response.write(`data: ${++stream.sent}\n\n`);
  response.end("sent");
}

// WebSocket: short text messages are sent back.
function upgrade(request, socket) {
  requests += 1;
  const key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  const accept = crypto.createHash("sha1").update(key).digest("base64");
  const fields = `upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: ${accept}\r\n`;
  socket.write(`HTTP/1.1 101 Switching Protocols\r\n${fields}\r\n`);
  let received = Buffer.alloc(0);
  socket.on("data", (piece) => {
    received = Buffer.concat([received, piece]);
    // A frame of the client: two bytes, four of the mask, the message.
    while (received.length >= 6 && received.length >= 6 + (received[1] & 127)) {
      const length = received[1] & 127;
      const message = received.subarray(6, 6 + length).map((byte, at) => byte ^ received[2 + (at % 4)]);
      socket.write(Buffer.concat([Buffer.from([received[0], length]), message]));
      if ((received[0] & 15) === 8) socket.end();
      received = received.subarray(6 + length);
    }
  });
  socket.on("error", () => {});
}

const server = http.createServer({ keepAliveTimeout: 60000 }, answer);
server.on("upgrade", (request, socket) => {
  if (request.headers.upgrade === "websocket" && request.headers["sec-websocket-key"] && request.url.startsWith("/socket")) {
    return upgrade(request, socket);
  }
  // Node gives the connection away, whatever is asked for.
  requests += 1;
  const length = Buffer.byteLength(request.url);
  socket.end(`HTTP/1.1 200 OK\r\nx-application: yes\r\nconnection: close\r\ncontent-length: ${length}\r\n\r\n${request.url}`);
});
server.on("clientError", (error, socket) => {
  // A connection that is closed in the middle of a request is no error of its sender's grammar.
  if (error.code !== "ECONNRESET" && error.code !== "HPE_INVALID_EOF_STATE") {
    errors += 1;
    console.error(error.code, error.rawPacket && error.rawPacket.toString("latin1"));
  }
  socket.destroy();
});
server.listen(Number(process.argv[2]), "127.0.0.1");
