"""redis-py against the resp listener: arguments are the ports of a server without tokens and of one with."""

import asyncio
import sys

import redis
import redis.asyncio

OPEN, GUARDED = int(sys.argv[1]), int(sys.argv[2])
TOKEN = "0123456789abcdef"
TIMES = {"socket_timeout": 30, "socket_connect_timeout": 30}


def same(got, want):
    assert got == want, f"{got!r}, not {want!r}"


def throttle(key):
    return ("CL.THROTTLE", key, 4, 5, 86400)


def verdicts(replies):
    return [reply[:3] for reply in replies]


def synchronous(protocol):
    key = f"sync{protocol}"
    client = redis.Redis(port=OPEN, protocol=protocol, client_name="tester", **TIMES)
    same(client.ping(), True)
    same(client.echo("x"), b"x")
    same(client.client_getname() in ("tester", b"tester"), True)
    same(client.info("server")["redis_mode"], "standalone")
    same(client.execute_command(*throttle(key))[:3], [0, 5, 4])
    same(client.execute_command("TG.PEEK", "user", key)[:4], [0, 5, 5, -1])
    pipe = client.pipeline(transaction=False)
    for _ in range(10):
        pipe.execute_command(*throttle(key))
    want = [[0, 5, left] for left in (3, 2, 1, 0)] + [[1, 5, 0]] * 6
    same(verdicts(pipe.execute()), want)
    try:
        client.execute_command("TG.CHECK")
        raise AssertionError("no error")
    except redis.ResponseError as error:
        same("there are no facts" in str(error), True)
    try:
        client.execute_command("CL.THROTTLE", key, "x", 2, 3)
        raise AssertionError("no error")
    except redis.ResponseError as error:
        same(str(error), "Cell error: Store error: Couldn't parse as integer: x")
    try:
        client.get("a")
        raise AssertionError("no error")
    except redis.ResponseError as error:
        same(str(error).startswith("unknown command 'GET'"), True)
    # What redis-py does by default is a transaction: it is refused, with what to write instead.
    pipe = client.pipeline()
    for _ in range(3):
        pipe.execute_command(*throttle(f"transaction{protocol}"))
    try:
        pipe.execute()
        raise AssertionError("no error")
    except redis.ResponseError as error:
        same("pipeline(transaction=False)" in str(error), True)
    same(client.execute_command(*throttle(f"transaction{protocol}"))[:3], [0, 5, 4])
    client.close()


def pooled():
    pool = redis.BlockingConnectionPool(port=OPEN, max_connections=4, timeout=30, **TIMES)
    clients = [redis.Redis(connection_pool=pool) for _ in range(4)]
    held = [pool.get_connection() for _ in range(4)]
    for connection in held:
        pool.release(connection)
    replies = [client.execute_command(*throttle("pool")) for client in clients]
    same(verdicts(replies), [[0, 5, left] for left in (4, 3, 2, 1)])
    pool.disconnect()


def large_pipeline():
    client = redis.Redis(port=OPEN, **TIMES)
    pipe = client.pipeline(transaction=False)
    for _ in range(100_000):
        pipe.execute_command("CL.THROTTLE", "large", 99_999, 100, 86400)
    replies = pipe.execute()
    same((len(replies), replies[0][:3], replies[-1][:3]), (100_000, [0, 100_000, 99_999], [0, 100_000, 0]))
    client.close()


def guarded(protocol):
    for user in (None, "app"):
        client = redis.Redis(port=GUARDED, username=user, password=TOKEN, protocol=protocol, **TIMES)
        same(client.ping(), True)
        client.close()
    for password in (None, "wrong"):
        client = redis.Redis(port=GUARDED, password=password, protocol=protocol, **TIMES)
        try:
            client.ping()
            raise AssertionError("no error")
        except redis.AuthenticationError:
            pass
        client.close()


def no_cluster():
    try:
        redis.RedisCluster(host="127.0.0.1", port=OPEN, **TIMES)
        raise AssertionError("no error")
    except redis.exceptions.RedisClusterException as error:
        same("cluster" in str(error).lower(), True)


async def asynchronous(protocol):
    key = f"async{protocol}"
    client = redis.asyncio.Redis(port=OPEN, protocol=protocol, **TIMES)
    replies = await asyncio.gather(*(client.execute_command(*throttle(key)) for _ in range(8)))
    same(sorted(verdicts(replies)), sorted([[0, 5, left] for left in (4, 3, 2, 1, 0)] + [[1, 5, 0]] * 3))
    async with client.pipeline(transaction=False) as pipe:
        same(verdicts(await pipe.execute_command(*throttle(key)).execute()), [[1, 5, 0]])
    await client.aclose()


for protocol in (2, 3):
    synchronous(protocol)
    guarded(protocol)
    asyncio.run(asynchronous(protocol))
pooled()
large_pipeline()
no_cluster()
print("all is well")
