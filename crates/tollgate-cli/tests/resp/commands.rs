//! What clients send beside their questions, in both dialects and as lines.

use crate::harness::TollgateProcess;
use crate::resp::resp_client::{RespReply, RespTestClient, command};

/// Replies that do not depend on anything.
fn check(redis: &mut RespTestClient, rows: &[(&str, RespReply)]) {
    for (line, want) in rows {
        assert_eq!(redis.say(line), *want, "{line}");
    }
}

fn error(text: &str) -> RespReply {
    RespReply::Error(text.into())
}

#[test]
fn simple_commands_in_any_letters() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let disabled = "ERR This instance has cluster support disabled";
    check(
        &mut redis,
        &[
            ("PING", RespReply::Simple("PONG".into())),
            ("ping hello", RespReply::text("hello")),
            ("pInG a b", error("ERR wrong number of arguments for 'ping' command")),
            ("ECHO x", RespReply::text("x")),
            ("ECHO", error("ERR wrong number of arguments for 'echo' command")),
            ("SELECT 0", RespReply::ok()),
            ("SELECT 1", error("ERR DB index is out of range")),
            ("SELECT +0", error("ERR value is not an integer or out of range")),
            ("SELECT 00", error("ERR value is not an integer or out of range")),
            ("SELECT x", error("ERR value is not an integer or out of range")),
            ("CONFIG GET save", RespReply::Array(Vec::new())),
            ("CONFIG SET save x", error("ERR unknown subcommand 'SET'. Try CONFIG HELP.")),
            ("CLUSTER SLOTS", error(disabled)),
            ("READONLY", error(disabled)),
            ("READWRITE", error(disabled)),
            ("COMMAND COUNT", RespReply::Integer(22)),
            ("COMMAND DOCS ping", RespReply::Array(Vec::new())),
            ("COMMAND COUNT x", error("ERR wrong number of arguments for 'command|count' command")),
            ("COMMAND X", error("ERR unknown subcommand 'X'. Try COMMAND HELP.")),
            ("GET a b", error("ERR unknown command 'GET', with args beginning with: 'a' 'b' ")),
            ("EXEC", error("ERR EXEC without MULTI")),
            ("DISCARD", error("ERR DISCARD without MULTI")),
        ],
    );
    let RespReply::Array(all) = redis.say("COMMAND") else { panic!("no array") };
    assert_eq!(all.len(), 22);
    let RespReply::Array(one) = redis.say("COMMAND INFO cl.throttle get") else {
        panic!("no array")
    };
    let RespReply::Array(described) = &one[0] else { panic!("no array") };
    assert_eq!(described[..2], [RespReply::text("cl.throttle"), RespReply::Integer(-1)]);
    assert_eq!(described[3..6], [1, 1, 1].map(RespReply::Integer), "where its key is");
    assert_eq!(one[1], RespReply::Null);
    let long = "x".repeat(50_000);
    let told = redis.ask(&[&long, &long, &long]);
    assert!(told.error().len() < 400, "{told:?}");
}

#[test]
fn a_client_says_who_it_is() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let bad = "ERR Client names cannot contain spaces, newlines or special characters, or be longer than \
               256 bytes.";
    check(
        &mut redis,
        &[
            ("CLIENT GETNAME", RespReply::Null),
            ("CLIENT SETNAME worker-7", RespReply::ok()),
            ("CLIENT GETNAME", RespReply::text("worker-7")),
            ("CLIENT SETINFO LIB-NAME redis-py", RespReply::ok()),
            ("CLIENT SETINFO lib-ver 7.0", RespReply::ok()),
            ("CLIENT SETINFO other x", error("ERR Unrecognized option 'other'")),
            ("CLIENT NO-EVICT on", RespReply::ok()),
            ("CLIENT NO-TOUCH OFF", RespReply::ok()),
            ("CLIENT NO-TOUCH maybe", error("ERR syntax error")),
            ("CLIENT REPLY ON", RespReply::ok()),
            ("CLIENT KILL x", error("ERR unknown subcommand 'KILL'. Try CLIENT HELP.")),
            ("CLIENT ID x", error("ERR wrong number of arguments for 'client|id' command")),
        ],
    );
    assert_eq!(redis.ask(&["CLIENT", "SETNAME", "a b"]).error(), bad);
    assert_eq!(redis.ask(&["CLIENT", "SETNAME", &"x".repeat(257)]).error(), bad);
    let RespReply::Bulk(info) = redis.say("CLIENT INFO") else { panic!("no text") };
    let info = String::from_utf8(info).unwrap();
    let RespReply::Integer(id) = redis.say("CLIENT ID") else { panic!("no number") };
    for part in [&format!("id={id} "), " name=worker-7 ", " lib-name=redis-py ", " lib-ver=7.0\n"] {
        assert!(info.contains(part), "{info}");
    }
    assert_ne!(RespTestClient::connect(&server).say("CLIENT ID"), RespReply::Integer(id));
    assert_eq!(redis.say("RESET"), RespReply::Simple("RESET".into()));
    check(
        &mut redis,
        &[("CLIENT GETNAME", RespReply::Null), ("CLIENT ID", RespReply::Integer(id))],
    );
}

#[test]
fn replies_can_be_switched_off_as_in_redis() {
    let server = TollgateProcess::start(&[]);
    let peer = testkit::redis::TestRedis::start();
    let rows = [
        ("CLIENT REPLY ON\nPING", "+OK\r\n+PONG\r\n"),
        ("CLIENT REPLY OFF\nPING\nNOPE\nECHO\nCLIENT REPLY ON\nPING", "+OK\r\n+PONG\r\n"),
        ("CLIENT REPLY SKIP\nECHO 1\nECHO 2", "$1\r\n2\r\n"),
        ("CLIENT REPLY SKIP\nNOPE\nECHO 2", "$1\r\n2\r\n"),
        ("CLIENT REPLY SKIP\nCLIENT REPLY SKIP\nECHO 1\nECHO 2", "$1\r\n2\r\n"),
        ("CLIENT REPLY SKIP\nCLIENT REPLY ON\nECHO 1", "+OK\r\n$1\r\n1\r\n"),
        ("CLIENT REPLY SKIP\nCLIENT REPLY OFF\nPING\nPING", ""),
        ("CLIENT REPLY OFF\nCLIENT REPLY SKIP\nPING\nPING", ""),
        ("CLIENT REPLY SKIP\nCLIENT REPLY x\nECHO 2", "$1\r\n2\r\n"),
        ("CLIENT REPLY SKIP\n\nECHO 1", "$1\r\n1\r\n"),
        ("CLIENT REPLY SKIP\n*0\r\nECHO 1", "$1\r\n1\r\n"),
        ("CLIENT REPLY OFF\n\nECHO 1", ""),
        ("CLIENT REPLY x\nPING", "-ERR syntax error\r\n+PONG\r\n"),
        ("CLIENT REPLY OFF\nRESET\nPING", "+RESET\r\n+PONG\r\n"),
        ("CLIENT REPLY SKIP\nRESET\nPING", "+PONG\r\n"),
        ("CLIENT REPLY OFF\nQUIT\nPING", ""),
        ("PING\nCLIENT REPLY OFF\n*x\r", "+PONG\r\n"),
    ];
    for (lines, told) in rows {
        for address in [peer.address(), server.resp()] {
            let mut client = RespTestClient::connect_to(address);
            client.send(format!("{lines}\n").as_bytes());
            client.socket().shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(client.until_closed(), told, "{lines:?} at {address}");
        }
    }
    // What is not told is done: calls that would have been decided together, too.
    let mut redis = RespTestClient::connect(&server);
    let mut sent = command(&["CLIENT", "REPLY", "OFF"]);
    for _ in 0..3 {
        sent.extend(command(&["CL.THROTTLE", "k", "4", "5", "3600"]));
    }
    sent.extend(command(&["CLIENT", "REPLY", "ON"]));
    sent.extend(command(&["CL.THROTTLE", "k", "4", "5", "3600"]));
    redis.send(&sent);
    assert_eq!(redis.receive(), RespReply::ok());
    assert_eq!(redis.receive(), RespReply::integers(&[0, 5, 1, -1, 2880]));
}

#[test]
fn hello_chooses_the_dialect() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let mut redis = RespTestClient::connect(&server);
    let RespReply::Array(flat) = redis.say("HELLO") else { panic!("RESP2 has no maps") };
    assert_eq!(flat.len(), 14);
    assert_eq!(flat[4..6], [RespReply::text("proto"), RespReply::Integer(2)]);
    let RespReply::Map(pairs) = redis.say("HELLO 3 SETNAME x") else { panic!("RESP3 has maps") };
    let find = |name: &str| {
        let found = pairs.iter().find(|(field, _)| *field == RespReply::text(name));
        found.map(|(_, value)| value.clone()).unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!((find("proto"), find("role")), (RespReply::Integer(3), RespReply::text("master")));
    assert_eq!(
        (find("server"), find("mode")),
        (RespReply::text("redis"), RespReply::text("standalone"))
    );
    assert_eq!(redis.say("CLIENT GETNAME"), RespReply::text("x"));
    assert_eq!(redis.say("CONFIG GET save"), RespReply::Map(Vec::new()));
    let RespReply::Verbatim(info) = redis.say("INFO server") else { panic!("no verbatim text") };
    assert!(info.starts_with("# Server\r\nredis_version:7."), "{info}");
    assert!(!info.contains("# Replication"), "{info}");
    let RespReply::Array(told) = redis.say("TG.CHECK user 1") else { panic!("no array") };
    assert_eq!(told[5], RespReply::text("default"), "{told:?}");
    assert_eq!(
        redis.say("CLIENT INFO NO"),
        error("ERR wrong number of arguments for 'client|info' command")
    );
    check(
        &mut redis,
        &[
            ("HELLO 4", error("NOPROTO unsupported protocol version")),
            ("HELLO x", error("ERR Protocol version is not an integer or out of range")),
            ("HELLO +3", error("ERR Protocol version is not an integer or out of range")),
            ("HELLO 03", error("ERR Protocol version is not an integer or out of range")),
            ("HELLO 2 NOPE", error("ERR Syntax error in HELLO option 'NOPE'")),
            ("HELLO 2 AUTH u", error("ERR Syntax error in HELLO option 'AUTH'")),
        ],
    );
    assert!(matches!(redis.say("HELLO"), RespReply::Map(_)), "an error changes nothing");
    assert!(matches!(redis.say("HELLO 2"), RespReply::Array(_)));
    let RespReply::Bulk(info) = redis.say("INFO") else { panic!("no text") };
    let info = String::from_utf8(info).unwrap();
    for line in ["redis_mode:standalone", "tollgate_version:", "loading:0", "role:master"] {
        assert!(info.contains(&format!("\r\n{line}")), "{info}");
    }
}

#[test]
fn people_type_lines() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    redis.send(b"ping\r\n\r\n   \nECHO \"a \\x41\"\nCL.THROTTLE 'a b' 4 5 3600\n");
    assert_eq!(redis.receive(), RespReply::Simple("PONG".into()));
    assert_eq!(redis.receive(), RespReply::text("a A"));
    assert_eq!(redis.receive(), RespReply::integers(&[0, 5, 4, -1, 720]));
    let RespReply::Array(again) = redis.ask(&["CL.THROTTLE", "a b", "4", "5", "3600", "0"]) else {
        panic!("no array")
    };
    assert_eq!(again[2], RespReply::Integer(4), "the same key");
    redis.send(b"echo \"a\n");
    assert_eq!(redis.receive(), error("ERR Protocol error: unbalanced quotes in request"));
    assert_eq!(redis.until_closed(), "");
}

#[test]
fn what_go_redis_sends_on_connecting_is_answered() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    // Two pipelines, as it sends them.
    redis.send(&command(&["hello", "3"]));
    assert!(matches!(redis.receive(), RespReply::Map(_)));
    let mut sent = command(&["client", "setinfo", "LIB-NAME", "go-redis(,go1.24.1)"]);
    sent.extend(command(&["client", "setinfo", "LIB-VER", "9.12.0"]));
    sent.extend(command(&["client", "maint_notifications", "on"]));
    sent.extend(command(&["cl.throttle", "k", "4", "5", "60"]));
    redis.send(&sent);
    assert_eq!((redis.receive(), redis.receive()), (RespReply::ok(), RespReply::ok()));
    // It tries, and goes on without.
    assert!(redis.receive().error().starts_with("ERR unknown subcommand"));
    assert_eq!(redis.receive(), RespReply::integers(&[0, 5, 4, -1, 12]));
}

#[test]
fn goodbye() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    redis.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!(redis.until_closed(), "+PONG\r\n+OK\r\n", "nothing behind it is obeyed");
    // Whoever sends everything and closes their side is still answered.
    let mut redis = RespTestClient::connect(&server);
    redis.send(b"PING\r\nPING\r\nPIN");
    redis.socket().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(redis.until_closed(), "+PONG\r\n+PONG\r\n");
    // A browser that was made to send a form is not obeyed.
    let mut redis = RespTestClient::connect(&server);
    redis.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nCL.THROTTLE k 4 5 60\r\n");
    assert_eq!(redis.until_closed(), "");
    assert_eq!(
        RespTestClient::connect(&server).say("CL.THROTTLE k 4 5 60"),
        RespReply::integers(&[0, 5, 4, -1, 12])
    );
}

#[test]
fn what_comes_in_is_counted() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    let mut redis = RespTestClient::connect(&server);
    for line in ["PING", "CL.THROTTLE k 0 1 60", "CL.THROTTLE k 0 1 60", "NOPE", "TG.CHECK usr 1"] {
        redis.say(line);
    }
    redis.send(b"CL.THROTTLE k -1 1 60\n*x");
    let metrics = |line: &str| {
        let page = server.admin_get("/metrics", &[]).body;
        assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
    };
    assert!(redis.until_closed().contains("-ERR Protocol error"));
    for line in [
        r#"tollgate_resp_commands_total{command="cl.throttle"} 3"#,
        r#"tollgate_resp_commands_total{command="ping"} 1"#,
        r#"tollgate_resp_commands_total{command="tg.check"} 1"#,
        r#"tollgate_resp_commands_total{command="other"} 1"#,
        r#"tollgate_resp_errors_total{reason="protocol"} 1"#,
        r#"tollgate_resp_errors_total{reason="command"} 2"#,
        r#"tollgate_throttle_calls_total{outcome="allowed"} 1"#,
        r#"tollgate_throttle_calls_total{outcome="refused"} 2"#,
    ] {
        metrics(line);
    }
}

#[test]
fn help_is_what_is_promised() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    for (line, word) in
        [("CLIENT HELP", "SETNAME"), ("command help", "COUNT"), ("CONFIG HELP", "GET")]
    {
        let RespReply::Array(lines) = redis.say(line) else { panic!("{line}") };
        let has = |reply: &RespReply| matches!(reply, RespReply::Bulk(text) if String::from_utf8_lossy(text).contains(word));
        assert!(lines.len() > 1 && lines.iter().any(has), "{line}: {lines:?}");
    }
}

/// What is between MULTI and EXEC would be charged although the client hears that all of it failed: it is
/// refused whole, and nothing of it counts.
#[test]
fn a_transaction_is_refused_whole() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut redis = RespTestClient::connect(&server);
    let throttle = "CL.THROTTLE k 4 5 86400";
    let refused = [
        throttle,
        "TG.CHECK user 42",
        "TG.RESET default user=42",
        "CL.THROTTLE k x 5 86400",
        "ECHO",
        "GET a",
        "PING",
        "CLIENT REPLY OFF",
        "HELLO 3",
    ];
    assert_eq!(redis.say("MULTI"), RespReply::ok());
    assert_eq!(redis.say("MULTI"), error("ERR MULTI calls can not be nested"));
    for line in refused {
        let told = redis.say(line);
        assert!(told.error().contains("pipeline(transaction=False)"), "{line}: {told:?}");
    }
    let aborted = "EXECABORT Transaction discarded because of previous errors.";
    assert_eq!(redis.say("EXEC"), error(aborted));
    let one_left = |redis: &mut RespTestClient, left: i64| {
        let RespReply::Array(reply) = redis.say("CL.THROTTLE k 4 5 86400") else {
            panic!("no array")
        };
        assert_eq!(reply[..3], [0, 5, left].map(RespReply::Integer));
    };
    one_left(&mut redis, 4);
    let RespReply::Array(peek) = redis.say("TG.PEEK user 42") else { panic!("no array") };
    assert_eq!(peek[2], RespReply::Integer(9), "nothing was charged");
    // In one piece, as clients send it: what came before and after is decided, what is between is not.
    let words: Vec<u8> = [throttle, "MULTI", throttle, throttle, "EXEC", throttle]
        .iter()
        .flat_map(|line| command(&line.split(' ').collect::<Vec<_>>()))
        .collect();
    redis.send(&words);
    let replies: Vec<RespReply> = (0..6).map(|_| redis.receive()).collect();
    let allowed: Vec<bool> = replies.iter().map(|one| matches!(one, RespReply::Array(_))).collect();
    assert_eq!(allowed, [true, false, false, false, false, true], "{replies:?}");
    one_left(&mut redis, 1);
    // It ends otherwise, too, and an empty one does nothing.
    for end in ["DISCARD", "RESET"] {
        assert_eq!(redis.say("MULTI"), RespReply::ok());
        assert!(matches!(redis.say(throttle), RespReply::Error(_)));
        assert!(!matches!(redis.say(end), RespReply::Error(_)), "{end}");
        assert!(matches!(redis.say("PING"), RespReply::Simple(_)), "{end}");
    }
    assert_eq!(redis.say("MULTI"), RespReply::ok());
    assert_eq!(redis.say("EXEC"), RespReply::Array(Vec::new()));
    one_left(&mut redis, 0);
}

/// Whoever may ask cannot drown the log, or hide what others do in it.
#[test]
fn a_flood_of_resets_is_few_lines_that_say_how_many_there_were() {
    const RESETS: u64 = 20_000;
    let server = TollgateProcess::start(&["--limit", "9/hour", "--log-format", "json"]);
    let mut redis = RespTestClient::connect(&server);
    let one = command(&["TG.RESET", "default", "user=42"]);
    for _ in 0..RESETS / 1_000 {
        redis.send(&one.repeat(1_000));
        for _ in 0..1_000 {
            assert!(matches!(redis.receive(), RespReply::Integer(_) | RespReply::Simple(_)));
        }
    }
    let log = server.stop().stderr;
    let events = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let (mut lines, mut more, mut summaries) = (0, 0, 0);
    for event in events {
        match event["event"].as_str().unwrap() {
            "a key was reset" => lines += 1,
            "more keys were reset within a second than are logged individually" => {
                assert_eq!((&event["by"], &event["token"]), (&"127.0.0.1".into(), &"none".into()));
                summaries += 1;
                more += event["resets"].as_u64().expect("a number");
            }
            _ => {}
        }
    }
    assert_eq!(lines + more, RESETS, "none is lost");
    assert!(lines <= 10 * (summaries + 1), "{lines} lines in about {summaries} seconds");
}
