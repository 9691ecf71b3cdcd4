//! `IdentifiedCaller`: the caller of a request whose body is read before the decision, identified once for both.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::request;
use tollgate_rules::{Identity, RuleSet};

/// The caller of a request, in the request's extensions while its body is read. It counts for the version of the rules that it was
/// identified by.
#[derive(Clone, Debug)]
pub struct IdentifiedCaller {
    rules: Arc<RuleSet>,
    identity: Identity<'static>,
}

impl IdentifiedCaller {
    pub(super) fn new(rules: Arc<RuleSet>, identity: Identity<'_>) -> IdentifiedCaller {
        IdentifiedCaller { rules, identity: identity.into_owned() }
    }

    /// The caller of a request, if it was identified by these rules.
    pub(super) fn by<'q>(
        rules: &Arc<RuleSet>,
        head: &'q request::Parts,
    ) -> Option<&'q IdentifiedCaller> {
        let caller = head.extensions.get::<IdentifiedCaller>()?;
        Arc::ptr_eq(&caller.rules, rules).then_some(caller)
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        let Identity { ip, user, api_key, tier } = &self.identity;
        let [user, api_key, tier] =
            [user, api_key, tier].map(|text| text.as_deref().map(Cow::Borrowed));
        Identity { ip: *ip, user, api_key, tier }
    }

    /// The address of the client, if the layer finds one: that of the peer, or the one that a trusted proxy states.
    pub fn address(&self) -> Option<IpAddr> {
        self.identity.ip
    }
}
