// Routes on Node, the body naming the route: on the first port found by the `URL` that is made of the
// target, on the second by the target as it is, on the third by Node's older parser. Arguments: three ports.
const http = require("http");
const { parse } = require("url");

function route(path) {
  if (path === "/login") return "login";
  if (path === "/api/health") return "health";
  if (path === "/api" || path.startsWith("/api/")) return "api";
  if (path === "/search" || path.startsWith("/search/")) return "search";
  if (/^\/pair\/[^/]+\/[^/]+$/.test(path)) return "pair";
  return "other";
}

function serve(port, pathOf) {
  const answer = (request, response) => {
    let name = "refused";
    try {
      name = route(pathOf(request.url));
    } catch {
      response.statusCode = 400;
    }
    response.end(`<${name}>`);
  };
  http.createServer(answer).listen(Number(port), "127.0.0.1");
}

serve(process.argv[2], (target) => new URL(target, "http://localhost").pathname);
serve(process.argv[3], (target) => target.split("?")[0]);
serve(process.argv[4], (target) => parse(target).pathname ?? "");
