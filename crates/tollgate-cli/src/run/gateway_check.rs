//! Checks that a gateway has somewhere to forward requests to.

use tollgate_rules::RuleSet;

use crate::cli::Report;
use crate::settings::ServerSettings;

const UPSTREAM_HINT: &str = "add --upstream http://127.0.0.1:3000 with the address of your service, \
                             or `upstreams` and `routes` to the rules file";

/// Refuses an upstream without a gateway, and a gateway that cannot have an upstream.
pub(super) fn check_settings(settings: &ServerSettings) -> Result<(), Report> {
    match (has_gateway(settings), &settings.upstream) {
        (false, Some(_)) => Err(Report::new("--upstream has no effect without --gateway")
            .hint("add --gateway 127.0.0.1:8000, the address that clients connect to")),
        (true, None) if settings.rules.is_empty() => Err(no_upstream()),
        _ => Ok(()),
    }
}

/// Refuses a gateway whose rules name no upstream. A reload may remove the last one: then requests are answered with 404.
pub(super) fn check_rules(settings: &ServerSettings, rules: &RuleSet) -> Result<(), Report> {
    let has_upstream = settings.upstream.is_some() || !rules.settings().gateway.routes().is_empty();
    match has_gateway(settings) && !has_upstream {
        true => Err(no_upstream()),
        false => Ok(()),
    }
}

fn no_upstream() -> Report {
    Report::new("the gateway has no upstream to forward requests to").hint(UPSTREAM_HINT)
}

fn has_gateway(settings: &ServerSettings) -> bool {
    settings.listeners.open().any(|(entry, _)| entry.is_public())
}
