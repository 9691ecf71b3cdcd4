// Customers of the shop in shop.yaml: many that behave, some that are too fast, and one that guesses passwords.
"use strict";

const http = require("node:http");

/** Requests under way at most; the gateway lets some of them wait. */
const OPEN_MAX = 200;
const TICK_MS = 50;
/** Checks of a warehouse, which asks before it serves its own requests. */
const CHECKS_PER_SECOND = 45;

/** A server of the shop that takes a few milliseconds for each request. */
function startUpstream(meanMs) {
  const server = http.createServer((request, response) => {
    setTimeout(() => response.end("ok\n"), meanMs * (0.5 + Math.random()));
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({
    address: `http://127.0.0.1:${server.address().port}`,
    stop: () => server.close() && server.closeAllConnections(),
  })));
}

/** A customer by a number; low numbers come more often. */
function customer() {
  const number = Math.floor(400 * Math.random() ** 3);
  const tier = number % 9 === 0 ? "partner" : number % 4 === 0 ? "pro" : "free";
  return { "x-user-id": `customer-${1000 + number}`, "x-tier": tier, "x-forwarded-for": `203.0.113.${number % 200}` };
}

/** What is requested: requests per second at a time of the run, and the request itself. */
const SOURCES = [
  [(at) => 60 + 25 * Math.sin(at / 19) + 12 * Math.sin(at / 5), () => ["GET", "/api/search?q=boots", customer()]],
  [(at) => 9 + 3 * Math.sin(at / 13), () => ["POST", "/api/checkout", customer()]],
  [(at) => 6 + 2 * Math.sin(at / 11), () => ["GET", `/media/shoe-${Math.ceil(40 * Math.random())}.webp`,
    { "x-forwarded-for": `203.0.113.${Math.floor(3 * Math.random())}` }]],
  [() => 0.6, () => ["GET", "/api/reports", { "x-user-id": "customer-1004", "x-tier": "pro" }]],
  [() => 2, () => ["POST", "/login", { "x-forwarded-for": `203.0.113.${Math.floor(200 * Math.random())}` }]],
  // A crawler that comes in waves, and somebody who guesses passwords now and then.
  [(at) => (at % 47 < 14 ? 34 : 2), () => ["GET", "/api/search?q=all", { "x-forwarded-for": "198.51.100.23" }]],
  [(at) => (at % 120 < 30 ? 3 : 0), () => ["POST", "/login", { "x-forwarded-for": "198.51.100.77" }]],
];

/** What the warehouse asks about. */
function stockCheck() {
  const number = Math.floor(60 * Math.random() ** 2);
  return { method: "GET", path: "/stock", ip: `10.4.0.${number}`, user: `scanner-${number}` };
}

/** Sends requests to the gateway and to /v1/check until the returned function is called. */
function startTraffic({ gateway, http: checks }, speed = 1) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: OPEN_MAX });
  const begun = performance.now();
  const sources = SOURCES.map(([rate, make]) => [rate, () => {
    const [method, path, headers] = make();
    return { url: gateway + path, method, headers };
  }]);
  sources.push([() => CHECKS_PER_SECOND, () => ({ url: `${checks}/v1/check`, method: "POST", body: JSON.stringify(stockCheck()) })]);
  const owed = sources.map(() => 0);
  let open = 0;
  const timer = setInterval(() => {
    const at = (performance.now() - begun) / 1000;
    sources.forEach(([rate, make], source) => {
      owed[source] += (speed * Math.max(0, rate(at)) * TICK_MS) / 1000;
      // Arrivals are irregular, as they are in life.
      for (; owed[source] >= Math.random() * 2 && owed[source] > 0; owed[source] -= 1) {
        if (open >= OPEN_MAX) continue;
        open += 1;
        const { url, body, ...options } = make();
        const request = http.request(url, { ...options, agent }, (response) => response.resume());
        request.on("close", () => (open -= 1)).on("error", () => {}).end(body);
      }
    });
  }, TICK_MS);
  return () => {
    clearInterval(timer);
    agent.destroy();
  };
}

module.exports = { startTraffic, startUpstream };
