// ioredis against the resp listener: arguments are the ports of a server without tokens and of one with.

const assert = require("node:assert");
const Redis = require("ioredis");

const [open, guarded] = process.argv.slice(2).map(Number);
const token = "0123456789abcdef";
const options = { host: "127.0.0.1", connectTimeout: 30000, commandTimeout: 30000, maxRetriesPerRequest: 1 };
const throttle = (key) => [key, 4, 5, 86400];
const verdict = (reply) => reply.slice(0, 3);

async function main() {
  const client = new Redis({ ...options, port: open, connectionName: "tester" });
  assert.strictEqual(await client.ping(), "PONG");
  assert.strictEqual(await client.client("GETNAME"), "tester");
  assert.deepStrictEqual(verdict(await client.call("CL.THROTTLE", ...throttle("a"))), [0, 5, 4]);
  assert.strictEqual((await client.call("TG.CHECK", "user", "ioredis"))[5], "default");
  await assert.rejects(client.call("TG.CHECK"), /there are no facts/);

  const pipeline = client.pipeline();
  for (let turn = 0; turn < 6; turn++) pipeline.call("CL.THROTTLE", ...throttle("a"));
  pipeline.call("CL.THROTTLE", "a", "x", 2, 3);
  const replies = await pipeline.exec();
  const told = replies.slice(0, 6).map(([error, reply]) => (assert.ifError(error), verdict(reply)));
  assert.deepStrictEqual(told, [[0, 5, 3], [0, 5, 2], [0, 5, 1], [0, 5, 0], [1, 5, 0], [1, 5, 0]]);
  assert.strictEqual(replies[6][0].message, "Cell error: Store error: Couldn't parse as integer: x");

  // A transaction is refused whole, and nothing in it counts.
  const multi = client.multi();
  for (let turn = 0; turn < 3; turn++) multi.call("CL.THROTTLE", ...throttle("multi"));
  await assert.rejects(multi.exec(), (error) => {
    assert.match(error.message, /^EXECABORT/);
    return error.previousErrors.every(({ message }) => message.includes("ioredis: pipeline()"));
  });
  assert.deepStrictEqual(verdict(await client.call("CL.THROTTLE", ...throttle("multi"))), [0, 5, 4]);
  await client.quit();

  const auto = new Redis({ ...options, port: open, enableAutoPipelining: true });
  const calls = Array.from({ length: 1000 }, () => auto.call("CL.THROTTLE", "auto", 999, 1000, 86400));
  const remaining = (await Promise.all(calls)).map((reply) => reply[2]);
  assert.deepStrictEqual(remaining, Array.from({ length: 1000 }, (_, turn) => 999 - turn));
  await auto.quit();

  for (const username of [undefined, "app"]) {
    const known = new Redis({ ...options, port: guarded, username, password: token });
    assert.strictEqual(await known.ping(), "PONG");
    await known.quit();
  }
  const stranger = new Redis({ ...options, port: guarded, password: "wrong", retryStrategy: () => null });
  stranger.on("error", () => {});
  await assert.rejects(stranger.ping());
  stranger.disconnect();
  console.log("all is well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
