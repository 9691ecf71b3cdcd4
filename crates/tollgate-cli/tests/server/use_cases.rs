//! The use cases that Tollgate is for, each with the example file that people start from, over HTTP
//! against the real server. Requests that must not be torn apart by the clock come in one batch,
//! which is decided at one instant.

use serde_json::{Value, json};

use crate::harness::{TestHttpResponse, TollgateProcess};

fn serve(example: &str) -> TollgateProcess {
    let path = format!("{}/../../examples/rules/{example}", env!("CARGO_MANIFEST_DIR"));
    TollgateProcess::start(&["--rules", &path])
}

/// The decisions of a batch.
fn batch(server: &TollgateProcess, checks: &[Value]) -> Vec<Value> {
    let answer = server.post("/v1/check/batch", &json!(checks).to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json().as_array().expect("an array").clone()
}

/// How many of so many equal requests pass.
fn passing(server: &TollgateProcess, check: &Value, tries: usize) -> usize {
    let decisions = batch(server, &vec![check.clone(); tries]);
    decisions.iter().filter(|decision| decision["allowed"] == true).count()
}

fn check(server: &TollgateProcess, check: &Value) -> TestHttpResponse {
    server.post("/v1/check", &check.to_string())
}

/// Rule and units left, of every limit of a decision.
fn left(decision: &Value) -> Vec<(String, u64)> {
    let limits = decision["limits"].as_array().expect("a list");
    let one = |limit: &Value| {
        (limit["limit"].as_str().unwrap().into(), limit["remaining"].as_u64().unwrap())
    };
    limits.iter().map(one).collect()
}

#[test]
fn the_short_form_limits_endpoints_by_tier_and_caller() {
    let server = serve("short-form.yaml");
    let of = |user: &str, tier: &str, path: &str| json!({"user": user, "tier": tier, "path": path});
    for (tier, times) in [("free", 1), ("pro", 10)] {
        let user = &format!("user-{tier}");
        assert_eq!(passing(&server, &of(user, tier, "/api/search"), 30 * times + 5), 30 * times);
        assert_eq!(passing(&server, &of(user, tier, "/api/upload?x"), 10 * times + 5), 10 * times);
    }
    // All other paths share one count: varying the path buys nothing.
    let others: Vec<Value> = (0..120).map(|n| of("u", "free", &format!("/other/{n}"))).collect();
    let allowed = batch(&server, &others).iter().filter(|one| one["allowed"] == true).count();
    assert_eq!(allowed, 100);
    let mut thousand = of("v", "pro", "/");
    thousand["cost"] = json!(1_000);
    let decisions = batch(&server, &[thousand, of("v", "pro", "/a")]);
    assert_eq!((&decisions[0]["allowed"], &decisions[1]["allowed"]), (&json!(true), &json!(false)));
    // Nobody is logged in: the address counts.
    let from = |ip: &str| json!({"ip": ip, "path": "/api/search"});
    assert_eq!(passing(&server, &from("192.0.2.1"), 40), 30);
    assert_eq!(passing(&server, &from("192.0.2.2"), 40), 30);
    assert_eq!(passing(&server, &from("2001:db8::1"), 40), 30);
    assert_eq!(passing(&server, &from("2001:db8::ffff"), 40), 0, "the same network");
}

#[test]
fn the_short_form_answers_with_headers_and_a_body() {
    let server = serve("short-form.yaml");
    let upload = json!({"user": "42", "path": "/api/upload"});
    let allowed = check(&server, &upload);
    assert_eq!((allowed.status, allowed.header("x-ratelimit-limit")), (200, Some("10")));
    assert_eq!(allowed.header("x-ratelimit-remaining"), Some("9"));
    assert_eq!(allowed.header("ratelimit-policy"), Some(r#""api-upload-1m";q=10;w=60"#));
    batch(&server, &vec![upload.clone(); 20]);
    let refused = check(&server, &upload);
    assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("10")));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let retry_after: u64 = refused.header("retry-after").expect("one").parse().expect("a number");
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    let body = refused.json();
    assert_eq!(body["error"], "Too Many Requests");
    assert!(body["message"].as_str().unwrap().starts_with("Rate limit exceeded."));
    assert_eq!(body["retryAfter"], retry_after);
    for name in ["x-ratelimit-reset", "ratelimit", "ratelimit-policy"] {
        assert!(allowed.header(name).is_some() && refused.header(name).is_some(), "{name}");
    }
}

#[test]
fn five_logins_a_minute_and_then_a_ban() {
    let server = serve("login.yaml");
    let login = json!({"method": "POST", "path": "/login", "ip": "192.0.2.1"});
    assert_eq!(passing(&server, &login, 6), 5);
    let mut asked = login.clone();
    asked["cost"] = json!(0);
    let peek = check(&server, &asked).json();
    assert_eq!((&peek["allowed"], &peek["remaining"]), (&json!(true), &json!(0)));
    let other = json!({"method": "POST", "path": "/login", "ip": "192.0.2.2"});
    assert_eq!(passing(&server, &other, 6), 5, "one address does not shut out another");
    // One refusal was counted above; nine more earn the ban.
    let decisions = batch(&server, &vec![login.clone(); 10]);
    let by: Vec<&str> = decisions.iter().map(|one| one["decided_by"].as_str().unwrap()).collect();
    assert_eq!(by[..9], ["memory"; 9]);
    assert_eq!(by[9], "block");
    let banned = check(&server, &login);
    let wait: u64 = banned.header("retry-after").expect("a wait").parse().expect("a number");
    assert!((890..=900).contains(&wait), "{wait}");
    assert_eq!(banned.header("x-ratelimit-limit"), Some("5"));
}

#[test]
fn a_budget_holds_in_every_mix() {
    let server = serve("budget.yaml");
    let endpoints = [("GET", "/api/search", 1), ("POST", "/api/upload", 10)];
    let endpoints = [endpoints[0], endpoints[1], ("POST", "/api/heavy-compute", 50)];
    // Every sequence of six requests, each by a user of its own.
    let sequences: Vec<Vec<usize>> = (0..3_usize.pow(6))
        .map(|number| (0..6).map(|place| number / 3_usize.pow(place) % 3).collect())
        .collect();
    for (part, sequences) in sequences.chunks(150).enumerate() {
        let mut checks = Vec::new();
        let mut want = Vec::new();
        for (number, sequence) in sequences.iter().enumerate() {
            let mut used = 0;
            for (method, path, cost) in sequence.iter().map(|choice| endpoints[*choice]) {
                let user = format!("user-{part}-{number}");
                checks.push(json!({"method": method, "path": path, "user": user}));
                let fits = used + cost <= 100;
                used += if fits { cost } else { 0 };
                want.push((fits, 100 - used));
            }
        }
        let decisions = batch(&server, &checks);
        for ((decision, check), (allowed, left)) in decisions.iter().zip(&checks).zip(want) {
            let got = (decision["allowed"] == true, decision["remaining"].as_i64().unwrap());
            assert_eq!(got, (allowed, left), "{check}");
        }
    }
}

#[test]
fn four_windows_at_once_charge_all_or_none() {
    let server = serve("four-windows.yaml");
    let request = json!({"user": "42", "path": "/api/x"});
    let decisions = batch(&server, &vec![request; 15]);
    assert!(decisions[..10].iter().all(|one| one["allowed"] == true));
    for refused in &decisions[10..] {
        assert_eq!((&refused["allowed"], &refused["limit"]), (&json!(false), &json!("10/second")));
        let want = [("10000/day", 9_990), ("1000/hour", 990), ("100/minute", 90), ("10/second", 0)];
        assert_eq!(left(refused), want.map(|(limit, left)| (limit.into(), left)));
    }
}

#[test]
fn a_chain_charges_address_and_user_together() {
    let server = serve("chain.yaml");
    let by = |user: &str| json!({"user": user, "ip": "192.0.2.1", "path": "/api/x"});
    let decisions = batch(&server, &vec![by("anna"); 30]);
    assert_eq!(decisions.iter().filter(|one| one["allowed"] == true).count(), 20);
    let last = decisions.last().unwrap();
    assert_eq!(last["rule"], "per-user");
    assert_eq!(left(last)[0], ("100/minute".into(), 80), "the address paid for 20 and no more");
    // Four more users empty the address, each with room of their own.
    let users: Vec<Value> = (0..100).map(|n| by(&format!("user-{}", n % 5))).collect();
    let decisions = batch(&server, &users);
    assert_eq!(decisions.iter().filter(|one| one["allowed"] == true).count(), 80);
    assert_eq!(decisions.last().unwrap()["rule"], "per-address");
    assert_eq!(left(decisions.last().unwrap())[1], ("20/minute".into(), 4));
}
