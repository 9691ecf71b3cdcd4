//! `identify.user.jwt`: what to look for in signed tokens, and the file with the keys.

#[cfg(not(feature = "jwt"))]
use crate::Problem;
use crate::identify::UserSource;
use crate::yaml::{YamlEntry, YamlNode};

use super::context::CompileContext;

/// Reports that this build has no cryptography.
#[cfg(not(feature = "jwt"))]
pub(super) fn read(
    context: CompileContext<'_>,
    entry: &YamlEntry,
    _: Option<&YamlNode>,
) -> Option<UserSource> {
    let problem = Problem::new("this build of Tollgate cannot verify signed tokens")
        .hint("build tollgate-rules with its feature `jwt`, as the server is");
    context.error(entry.key_span, problem);
    None
}

#[cfg(feature = "jwt")]
pub(super) use with_keys::read;

#[cfg(feature = "jwt")]
mod with_keys {
    use std::sync::Arc;

    use super::super::named_file;
    use super::*;
    use crate::identify::jwt::{JwtSettings, JwtVerifier};
    use crate::matcher::parse_header_name;

    /// Reads settings and keys. The tier may be a claim of the same token.
    pub(in super::super) fn read(
        context: CompileContext<'_>,
        entry: &YamlEntry,
        tier: Option<&YamlNode>,
    ) -> Option<UserSource> {
        let node = &entry.node;
        let header = match node.get("header") {
            Some(header) => context.read(header, parse_header_name)?,
            None => "authorization".into(),
        };
        let file = node.get("keys_file")?;
        let text = |node: &YamlNode| node.text().map(Box::from);
        let texts = |name: &str| -> Vec<Box<str>> {
            let each = node.get(name).map(YamlNode::each).unwrap_or_default();
            each.iter().filter_map(text).collect()
        };
        let settings = JwtSettings {
            claim: text(node.get("claim")?)?,
            tier_claim: tier.and_then(|tier| text(tier.get("claim")?)),
            header,
            algorithms: texts("algorithms"),
            issuers: texts("issuer"),
            audiences: texts("audience"),
            requires_exp: node.get("require_exp").and_then(YamlNode::boolean).unwrap_or(true),
            keys_file: context.source.folder().join(file.text()?),
        };
        let wanted = "name a file with a JSON Web Key Set or public keys in PEM";
        let keys = named_file::read(context, &settings.keys_file, "keys file", wanted);
        match keys.and_then(|keys| JwtVerifier::new(settings, &keys)) {
            Ok(jwt) => Some(UserSource::Jwt(Arc::new(jwt))),
            Err(problem) => {
                context.error(file.span, problem);
                None
            }
        }
    }
}
