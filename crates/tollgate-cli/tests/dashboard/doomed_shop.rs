//! `DoomedShops`: servers with a Redis of their own. Cases kill the one or the other and spoil the rules.

use std::collections::HashMap;

use serde_json::json;
use testkit::redis::TestRedis;

use super::ShopFiles;
use crate::harness::TollgateProcess;

/// A server and its store.
struct DoomedShop {
    redis: TestRedis,
    files: ShopFiles,
    /// `None` after it was killed.
    server: Option<TollgateProcess>,
}

/// The shops by the names that cases gave them. Bound: each case starts one.
#[derive(Default)]
pub(super) struct DoomedShops(HashMap<String, DoomedShop>);

impl DoomedShops {
    /// Handles `ACTION NAME` and returns the line for the case.
    pub(super) fn handle(&mut self, request: &str, applications: [&str; 2]) -> String {
        let (action, name) = request.split_once(' ').expect("an action and a name");
        if action == "start" {
            let shop = DoomedShop::start(applications);
            let server = shop.server();
            let listeners = [server.admin(), server.http(), server.gateway()];
            let [admin, http, gateway] = listeners.map(|one| format!("http://{one}"));
            self.0.insert(name.into(), shop);
            return json!({ "admin": admin, "http": http, "gateway": gateway }).to_string();
        }
        let shop = self.0.get_mut(name).expect("the case has started it");
        match action {
            "kill-store" => shop.redis.kill(),
            "kill-server" => shop.server = None,
            "freeze-server" => shop.server().signal("STOP"),
            "thaw-server" => shop.server().signal("CONT"),
            "spoil-rules" => shop.files.write_rules("rules: [{ name: a }]"),
            _ => panic!("an unknown action: {action}"),
        }
        "done".into()
    }
}

impl DoomedShop {
    /// A shop whose rules refuse while the store is down, and whose media are at an address where nothing listens.
    fn start(applications: [&str; 2]) -> DoomedShop {
        let redis = TestRedis::start();
        let [app_1, app_2] = applications;
        let files = ShopFiles::new([app_1, app_2, "http://127.0.0.1:1"]);
        let closed = "\n    on_store_failure: closed\n    key:";
        files.write_rules(&files.rules_text().replace("\n    key:", closed));
        let server = files.start(&["--store", &redis.url()]);
        DoomedShop { redis, files, server: Some(server) }
    }

    fn server(&self) -> &TollgateProcess {
        self.server.as_ref().expect("it runs")
    }
}
