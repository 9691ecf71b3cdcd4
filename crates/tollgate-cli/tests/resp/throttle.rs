//! `CL.THROTTLE` as redis-cell answers it, through the real program.

use testkit::wait::until_true;

use crate::harness::TollgateProcess;
use crate::resp::resp_client::{RespReply, RespTestClient, command, command_of};

/// What a row of recorded calls is answered, on a key of its own. They are sent together, so that they
/// are decided at one instant however busy the machine is.
fn check(redis: &mut RespTestClient, row: usize, calls: &[(&str, [i64; 5])]) {
    let calls_sent = calls.iter().flat_map(|(args, _)| {
        let line = format!("CL.THROTTLE row{row} {args}");
        command(&line.split(' ').collect::<Vec<_>>())
    });
    redis.send(&calls_sent.collect::<Vec<u8>>());
    for (args, want) in calls {
        assert_eq!(redis.receive(), RespReply::integers(want), "row {row}: {args}");
    }
}

/// Limited, limit and remaining of the next reply.
fn verdict(redis: &mut RespTestClient) -> [i64; 3] {
    let RespReply::Array(numbers) = redis.receive() else { panic!("no array") };
    assert_eq!(numbers.len(), 5);
    let number = |index: usize| match numbers[index] {
        RespReply::Integer(number) => number,
        ref other => panic!("no number: {other:?}"),
    };
    [number(0), number(1), number(2)]
}

#[test]
fn replies_are_those_that_were_recorded() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let rows: [&[(&str, [i64; 5])]; 8] = [
        &[("15 30 60", [0, 16, 15, -1, 2]), ("15 30 60", [0, 16, 14, -1, 4])],
        &[
            ("4 5 60", [0, 5, 4, -1, 12]),
            ("4 5 60", [0, 5, 3, -1, 24]),
            ("4 5 60", [0, 5, 2, -1, 36]),
            ("4 5 60", [0, 5, 1, -1, 48]),
            ("4 5 60", [0, 5, 0, -1, 60]),
            ("4 5 60", [1, 5, 0, 12, 60]),
            ("4 5 60 0", [0, 5, 0, -1, 60]),
        ],
        &[("4 5 60 0", [0, 5, 5, -1, 0])],
        &[
            ("4 5 60 3", [0, 5, 2, -1, 36]),
            ("4 5 60 3", [1, 5, 2, 12, 36]),
            ("4 5 60 2", [0, 5, 0, -1, 60]),
        ],
        &[("4 1 1 6", [1, 5, 5, -1, 0])],
        &[("-1 5 60", [1, 0, 0, -1, 0]), ("-1 5 60 0", [0, 0, 0, -1, 0])],
        &[("4 -5 60", [1, 5, 0, -1, 0]), ("4 5 -60", [1, 5, 0, -1, 0])],
        &[
            ("9223372036854775807 1 60", [0, 52_596_000, 52_595_999, -1, 60]),
            ("4 1 60 9223372036854775807", [1, 5, 4, -1, 60]),
        ],
    ];
    for (row, calls) in rows.into_iter().enumerate() {
        check(&mut redis, row, calls);
    }
    let error = "Cell error: Store error:";
    let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    let wrong = [
        ("k 4 0 60", format!("{error} Zero rates are not supported")),
        ("k 4 5 0", format!("{error} Zero rates are not supported")),
        ("k 4 2000000000 1", format!("{error} Zero rates are not supported")),
        ("k", format!("{error} {usage}")),
        ("k 1", format!("{error} {usage}")),
        ("k 1 2", format!("{error} {usage}")),
        ("k 1 2 3 4 5", format!("{error} {usage}")),
        ("k x 2 3", format!("{error} Couldn't parse as integer: x")),
        ("k 1.5 2 3", format!("{error} Couldn't parse as integer: 1.5")),
        ("k 1 2 3 y", format!("{error} Couldn't parse as integer: y")),
        ("k 4 5 60 -1", "ERR the quantity is negative: write 0 to look, or more to take".into()),
        (
            "k 4 5 9223372036854775807",
            "ERR the period is longer than 100 years: the most is 3155760000 seconds".into(),
        ),
        (" 4 5 60", "ERR the key is empty: write the name of the caller to count".into()),
    ];
    for (args, want) in wrong {
        assert_eq!(redis.say(&format!("cl.throttle {args}")).error(), want, "{args}");
    }
    assert_eq!(redis.say("CL.THROTTLE").error(), format!("{error} {usage}"));
    let fresh = RespReply::integers(&[0, 5, 5, -1, 0]);
    assert_eq!(redis.say("CL.THROTTLE k 4 5 60 0"), fresh, "no error was charged");
}

#[test]
fn a_second_later_there_is_one_again() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    check(&mut redis, 0, &[("0 1 1", [0, 1, 0, -1, 1]), ("0 1 1", [1, 1, 0, 1, 1])]);
    until_true("a unit to come back", || {
        redis.send(&command(&["CL.THROTTLE", "row0", "0", "1", "1"]));
        let [limited, limit, left] = verdict(&mut redis);
        assert_eq!((limit, left), (1, 0));
        limited == 0
    });
}

#[test]
fn keys_are_any_bytes_and_changed_numbers_keep_what_is_used() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let mut redis = RespTestClient::connect(&server);
    let keys: [&[u8]; 5] = [b"a", b"a\0", b"\xff\xfe", b"a\r\n", &[b'x'; 60_000]];
    for key in keys {
        redis.send(&command_of(&[b"CL.THROTTLE", key, b"4", b"5", b"3600"]));
        assert_eq!(verdict(&mut redis), [0, 5, 4]);
    }
    // What is used stays used; another period is another limit.
    let rows = [
        ("4 5 3600", [0, 5, 3]),
        ("9 10 3600 0", [0, 10, 8]),
        ("1 2 3600", [1, 2, 0]),
        ("4 5 86400", [0, 5, 4]),
    ];
    for (numbers, want) in rows {
        let line = format!("CL.THROTTLE a {numbers}");
        redis.send(&command(&line.split(' ').collect::<Vec<_>>()));
        assert_eq!(verdict(&mut redis), want, "{numbers}");
    }
    // Rules count for themselves.
    assert_eq!(server.check(r#"{"user":"a"}"#)["remaining"], 4);
}

#[test]
fn a_pipeline_is_decided_in_order_whatever_stands_between() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let mut sent = Vec::new();
    for turn in 0..200 {
        sent.extend(command(&["CL.THROTTLE", "k", "149", "15", "86400"]));
        match turn % 50 {
            7 => sent.extend(b"PING\r\n"),
            8 => sent.extend(b"CL.THROTTLE k 149 15 86400 0\r\n"),
            9 => sent.extend(command(&["CL.THROTTLE", "k", "nine", "5", "60"])),
            10 => sent.extend(command(&["CL.THROTTLE", "k", "-1", "5", "60"])),
            _ => {}
        }
    }
    redis.send(&sent);
    for turn in 0..200 {
        let left = (149 - turn).max(0);
        assert_eq!(verdict(&mut redis), [i64::from(turn >= 150), 150, left], "turn {turn}");
        match turn % 50 {
            7 => assert_eq!(redis.receive(), RespReply::Simple("PONG".into())),
            8 => assert_eq!(verdict(&mut redis), [0, 150, left]),
            9 => assert!(redis.receive().error().contains("Couldn't parse as integer: nine")),
            10 => assert_eq!(redis.receive(), RespReply::integers(&[1, 0, 0, -1, 0])),
            _ => {}
        }
    }
}

#[test]
fn a_hundred_thousand_commands_are_sent_before_the_first_reply_is_read() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let one = command(&["CL.THROTTLE", "k", "99999", "100", "86400"]);
    redis.send(&one.repeat(100_001));
    for turn in 0..=100_000 {
        let want = [i64::from(turn == 100_000), 100_000, (99_999 - turn).max(0)];
        assert_eq!(verdict(&mut redis), want, "turn {turn}");
    }
}

#[test]
fn many_sets_of_numbers_on_one_connection() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    // More than a connection remembers, in one pipeline, twice.
    let sets: Vec<String> = (1..=40).chain(1..=40).map(|burst| burst.to_string()).collect();
    let calls = sets.iter().map(|burst| command(&["CL.THROTTLE", burst, burst, "5", "3600"]));
    redis.send(&calls.flatten().collect::<Vec<u8>>());
    for (index, burst) in sets.iter().enumerate() {
        let burst: i64 = burst.parse().unwrap();
        let left = burst - i64::from(index >= 40);
        assert_eq!(verdict(&mut redis), [0, burst + 1, left], "call {index}");
    }
}

#[test]
fn nobody_shuts_others_out_by_making_up_numbers() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    let mut greedy = RespTestClient::connect(&server);
    let century = 3_155_760_000_u64;
    for quantity in ["0", "1"] {
        for first in (0..17_000).step_by(1_000) {
            let calls: Vec<u8> = (first..first + 1_000)
                .flat_map(|call| {
                    let period = (century - call).to_string();
                    command(&["CL.THROTTLE", "k", "0", "1", &period, quantity])
                })
                .collect();
            greedy.send(&calls);
            for _ in 0..1_000 {
                assert!(matches!(greedy.receive(), RespReply::Array(_)));
            }
        }
        // With numbers that nobody has used, before and after there are too many.
        let mut redis = RespTestClient::connect(&server);
        let call = format!("CL.THROTTLE q{quantity} 1 2 86{quantity}00");
        for want in [[0, 2, 1], [0, 2, 0], [1, 2, 0], [1, 2, 0]] {
            let RespReply::Array(told) = redis.say(&call) else { panic!("{call}") };
            assert_eq!(told[..3], want.map(RespReply::Integer), "{call}");
        }
        let peek = redis.say(&format!("{call} 0"));
        let RespReply::Array(told) = peek else { panic!("{peek:?}") };
        assert_eq!(told[2], RespReply::Integer(0));
    }
    // Rules have numbers of their own.
    for allowed in [true, true, false] {
        assert_eq!(server.check(r#"{"user":"1"}"#)["allowed"], allowed);
    }
}

#[test]
fn nobody_passes_again_by_making_up_numbers_and_keys() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let century = 3_155_760_000_u64;
    let thousand = |redis: &mut RespTestClient, call: &dyn Fn(u64) -> Vec<u8>| {
        let sent: Vec<u8> = (0..1_000).flat_map(call).collect();
        redis.send(&sent);
        for _ in 0..1_000 {
            verdict(redis);
        }
    };
    for first in (0..17_000).step_by(1_000) {
        thousand(&mut redis, &|call| {
            let period = (century - first - call).to_string();
            command(&["CL.THROTTLE", "k", "0", "1", &period])
        });
    }
    let login = command(&["CL.THROTTLE", "login", "0", "1", "3600"]);
    redis.send(&login.repeat(2));
    assert_eq!([verdict(&mut redis), verdict(&mut redis)], [[0, 1, 0], [1, 1, 0]]);
    for first in (0..60_000).step_by(1_000) {
        thousand(&mut redis, &|call| {
            command(&["CL.THROTTLE", &(first + call).to_string(), "0", "1", "3600"])
        });
        redis.send(&login);
        assert_eq!(verdict(&mut redis), [1, 1, 0], "after {first} others");
    }
    // The operator is told.
    let page = server.admin_get("/metrics", &[]).body;
    let apart = 17_000 - 16_384 + 2 + 60_060;
    let counted = format!("tollgate_throttle_calls_apart_total {apart}");
    for line in ["tollgate_throttle_sets 16384", &counted] {
        assert!(
            page.lines().any(|found| found == line),
            "no {line} in
{page}"
        );
    }
    let ended = server.stop();
    let warned = ended.stderr.matches("CL.THROTTLE is called with too many different sets").count();
    assert_eq!(warned, 1, "once a minute: {}", ended.stderr);
}
