//! Waits under rules that change, and the reasons that clients are told when a wait was in vain.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::MemoryStore;
use tower::Service;

use crate::layer::fair::{FairScene, IDENTIFY, SLOW, shared_limit};
use crate::layer::harness::{ReadWholeBody, with};
use crate::layer::rules::rules;

/// The status of a response, or the reason of a refusal; empty until it is there.
type Told = Arc<Mutex<String>>;

fn send(scene: &mut FairScene<MemoryStore>, user: &str) -> Told {
    send_to(scene, "/cost/1", user)
}

fn send_to(scene: &mut FairScene<MemoryStore>, path: &str, user: &str) -> Told {
    let (mut service, told) = (scene.service.clone(), Told::default());
    let mut request = with("10.0.0.1", &[("x-user-id", user)]);
    *request.uri_mut() = path.parse().unwrap();
    let answered = Arc::clone(&told);
    scene.runtime.spawn(async move {
        let Ok(response) = service.call(request).await;
        let response = response.whole();
        let reason = serde_json::from_str::<Value>(response.body());
        let reason = reason.ok().and_then(|body| body["reason"].as_str().map(String::from));
        *answered.lock().unwrap() = reason.unwrap_or(response.status().as_u16().to_string());
    });
    scene.runtime.run_woken();
    told
}

fn told(all: &[Told]) -> Vec<String> {
    all.iter().map(|one| one.lock().unwrap().clone()).collect()
}

fn scene(text: &str) -> FairScene<MemoryStore> {
    FairScene::new(text, MemoryStore::new(10_000), Duration::ZERO)
}

#[test]
fn each_wait_in_vain_has_its_reason() {
    let text = shared_limit(SLOW).replace("wait: 2s", "wait: 4500ms");
    let mut few = scene(&text.replace("per_key: 100, total: 2000", "per_key: 2, total: 2"));
    let mut all: Vec<Told> = (0..4).map(|_| send(&mut few, "a")).collect();
    assert_eq!(told(&all), ["200", "", "", "queue_full"]);
    all.push(send(&mut few, "b"));
    few.runtime.run_woken();
    assert_eq!(told(&all), ["200", "", "displaced", "queue_full", ""]);
    few.end();
    let mut slow = scene(&text);
    let mut all: Vec<Told> = (0..12).map(|_| send(&mut slow, "a")).collect();
    let waiting = [vec!["200"], vec![""; 4], vec!["wait_too_long"; 7]].concat();
    assert_eq!(told(&all), waiting, "at once");
    // Another caller's turn comes first.
    all.push(send(&mut slow, "b"));
    slow.runtime.run(Duration::from_secs(5));
    let served = [vec!["200"; 4], vec!["wait_too_long"; 8], vec!["200"]];
    assert_eq!(told(&all), served.concat());
    slow.end();
    let store = MemoryStore::new(10_000);
    let mut busy = FairScene::new(&shared_limit("concurrency: 1"), store, Duration::from_secs(9));
    let all = [send(&mut busy, "a"), send(&mut busy, "a")];
    busy.runtime.run(Duration::from_secs(3));
    assert_eq!(told(&all), ["", "wait_expired"]);
    busy.end();
}

/// One limit for each caller, for which its requests wait.
fn own_limit(limit: &str) -> String {
    format!(
        "{IDENTIFY}
rules: [{{ name: api, key: '{{user}}', limits: [{limit}], fair: {{ wait: 1h, per_key: 100, total: 2000 }} }}]
"
    )
}

#[test]
fn whatever_raises_a_limit_wakes_those_who_wait_for_it() {
    type Change = fn(&FairScene<MemoryStore>);
    let raised = |scene: &FairScene<MemoryStore>| {
        scene.gatekeeper.replace(rules(&own_limit("6000/minute burst 10")));
    };
    let other_period = |scene: &FairScene<MemoryStore>| {
        scene.gatekeeper.replace(rules(&own_limit("100/second burst 10")));
    };
    let no_rule = |scene: &FairScene<MemoryStore>| {
        let text =
            own_limit("4/minute burst 1").replace("name: api", "name: api, match: { path: /x }");
        scene.gatekeeper.replace(rules(&text));
    };
    let overridden = |scene: &FairScene<MemoryStore>| {
        let caller = scene.gatekeeper.caller("api", "user=a").unwrap();
        caller.set_override(&json!({ "limits": ["6000/minute burst 10"] })).unwrap();
    };
    let reset = |scene: &FairScene<MemoryStore>| {
        let caller = scene.gatekeeper.caller("api", "user=a").unwrap();
        assert!(crate::layer::harness::now(caller.reset()));
    };
    let granted = |scene: &FairScene<MemoryStore>| {
        let caller = scene.gatekeeper.caller("api", "user=a").unwrap();
        crate::layer::harness::now(caller.grant(1));
    };
    let changes: [(&str, Change, usize); 6] = [
        ("raised", raised, 3),
        ("another period", other_period, 3),
        ("no rule", no_rule, 3),
        ("override", overridden, 3),
        ("reset", reset, 1),
        ("grant", granted, 1),
    ];
    for (name, change, served) in changes {
        let mut scene = scene(&own_limit("4/minute burst 1"));
        let all: Vec<Told> = (0..4).map(|_| send(&mut scene, "a")).collect();
        scene.runtime.run(Duration::from_millis(10_500));
        assert_eq!(told(&all), ["200", "", "", ""], "{name}");
        change(&scene);
        scene.runtime.run(Duration::from_millis(40));
        let expected = [vec!["200"; 1 + served], vec![""; 3 - served]].concat();
        assert_eq!(told(&all), expected, "{name}");
        scene.end();
    }
}

#[test]
fn an_override_that_ends_counts_within_a_second() {
    let mut scene = scene(&own_limit("6000/minute burst 10"));
    let until = json!({ "limits": ["4/minute burst 1"], "until": "2026-11-15T12:00:10Z" });
    let caller = scene.gatekeeper.caller("api", "user=a").unwrap();
    caller.set_override(&until).unwrap_or_else(|error| panic!("{error:?}"));
    let all: Vec<Told> = (0..3).map(|_| send(&mut scene, "a")).collect();
    scene.runtime.run(Duration::from_millis(9_900));
    assert_eq!(told(&all), ["200", "", ""]);
    scene.runtime.run(Duration::from_millis(1_200));
    assert_eq!(told(&all), ["200", "200", "200"]);
    scene.end();
}

#[test]
fn new_rules_let_a_request_go_on_that_waits_behind_one_who_stays() {
    let text = |path: &str| {
        format!(
            "{IDENTIFY}
rules:
  - {{ name: all, match: {{ path: '{path}' }}, key: global, limits: [6/minute burst 1] }}
  - {{ name: each, key: '{{user}}', fair: {{ wait: 1h, per_key: 10, total: 30 }} }}
"
        )
    };
    let mut scene = scene(&text("/{*rest}"));
    let mut all = vec![send(&mut scene, "a")];
    for _ in 0..2 {
        all.extend(["/cost/1", "/cost/2"].map(|path| send_to(&mut scene, path, "b")));
    }
    assert_eq!(told(&all), ["200", "", "", "", ""]);
    scene.gatekeeper.replace(rules(&text("/cost/1")));
    scene.runtime.run(Duration::from_millis(40));
    assert_eq!(told(&all), ["200", "", "200", "", "200"]);
    scene.end();
}

#[test]
fn those_who_go_on_without_a_turn_cost_their_caller_none() {
    let text = |path: &str| {
        format!(
            "{IDENTIFY}
rules:
  - {{ name: all, match: {{ path: '{path}' }}, key: global, limits: [12/minute burst 2],
      cost: {{ default: 1, /cost/1: 2, /stay/2: 2 }} }}
  - {{ name: each, key: '{{user}}', fair: {{ wait: 1h, per_key: 10, total: 30 }} }}
"
        )
    };
    let mut scene = scene(&text("/{*rest}"));
    let mut all = vec![send(&mut scene, "a")];
    all.extend(["/go", "/go", "/stay/1"].map(|path| send_to(&mut scene, path, "b")));
    all.extend(["/stay/2"; 2].map(|path| send_to(&mut scene, path, "c")));
    scene.gatekeeper.replace(rules(&text("/stay/{number}")));
    // The request of b is smaller than those of c, and those that went on cost it nothing.
    for (millis, done) in [(5_100, 4), (10_000, 5), (10_000, 6)] {
        scene.runtime.run(Duration::from_millis(millis));
        let expected = [vec!["200"; done], vec![""; 6 - done]].concat();
        assert_eq!(told(&all), expected);
    }
    scene.end();
}

#[test]
fn callers_whose_limit_is_replaced_wait_in_their_order() {
    let text = |limit: &str| shared_limit(limit).replace("wait: 2s", "wait: 1h");
    let mut scene = scene(&text("limits: [6/minute burst 1]"));
    let mut all = [(); 4].map(|()| send(&mut scene, "a"));
    // Who comes next takes the place in memory of the one who leaves.
    scene.runtime.cancel(1);
    all[1] = send(&mut scene, "a");
    // Another period is another limit.
    scene.gatekeeper.replace(rules(&text("limits: [1/10s burst 1]")));
    let served = [1, 10_000, 10_000].map(|millis| {
        scene.runtime.run(Duration::from_millis(millis));
        all.each_ref().map(|one| one.lock().unwrap().len())
    });
    assert_eq!(served, [[3, 0, 3, 0], [3, 0, 3, 3], [3; 4]]);
    scene.end();
}
