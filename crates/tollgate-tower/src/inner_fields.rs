//! `InnerLimitFields`: the treatment of rate limit header fields that the inner service wrote itself.

use http::{HeaderMap, HeaderName};
use tollgate::headers::RateLimitField;

/// The treatment of rate limit header fields in a response of the inner service, where the layer adds its own.
/// `Retry-After` and `Cache-Control` always stay.
///
/// [`RateLimitLayer::inner_fields`](crate::RateLimitLayer::inner_fields) sets it for all responses; in the extensions of
/// a response it counts for that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InnerLimitFields {
    /// They stay, and the layer's fields of the same name are left out.
    #[default]
    Keep,
    /// The layer's fields replace them.
    Replace,
    /// They are renamed: `X-RateLimit-Limit` becomes `Upstream-X-RateLimit-Limit`.
    Apart,
}

impl InnerLimitFields {
    /// Prepares the fields of the inner service for those of the layer.
    pub(crate) fn apply(self, headers: &mut HeaderMap) {
        // Most services write none of them: one walk is cheaper than a search for each.
        if self == InnerLimitFields::Keep || !headers.keys().any(may_be_limit_field) {
            return;
        }
        for field in RateLimitField::ALL {
            if matches!(field, RateLimitField::RetryAfter | RateLimitField::CacheControl) {
                continue;
            }
            let mut values = Vec::new();
            if let http::header::Entry::Occupied(entry) = headers.entry(field.name()) {
                values.extend(entry.remove_entry_mult().1);
            }
            if self == InnerLimitFields::Apart && !values.is_empty() {
                let name = format!("upstream-{}", field.name()).to_ascii_lowercase();
                let name = HeaderName::try_from(name).expect("a field's name is plain");
                for value in values {
                    headers.append(name.clone(), value);
                }
            }
        }
    }
}

/// Returns true for all rate limit fields, by the beginning of their names, and for few others.
fn may_be_limit_field(name: &HeaderName) -> bool {
    ["ratelimit", "x-ratelimit"].iter().any(|prefix| name.as_str().starts_with(prefix))
}

#[cfg(feature = "rules")]
impl From<tollgate_rules::gateway_settings::UpstreamLimitFields> for InnerLimitFields {
    fn from(fields: tollgate_rules::gateway_settings::UpstreamLimitFields) -> InnerLimitFields {
        use tollgate_rules::gateway_settings::UpstreamLimitFields;
        match fields {
            UpstreamLimitFields::Replace => InnerLimitFields::Replace,
            UpstreamLimitFields::Keep => InnerLimitFields::Keep,
            UpstreamLimitFields::Apart => InnerLimitFields::Apart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_are_found_by_the_beginning_of_their_names() {
        for field in RateLimitField::ALL {
            let always_stays =
                matches!(field, RateLimitField::RetryAfter | RateLimitField::CacheControl);
            let name: HeaderName = field.name().parse().unwrap();
            assert_eq!(may_be_limit_field(&name), !always_stays, "{name}");
        }
    }
}
