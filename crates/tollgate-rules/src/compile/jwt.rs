//! `identify.user.jwt`: what to look for in signed tokens, and the file with the keys.

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
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::identify::jwt::{JwtSettings, JwtVerifier};
    use crate::matcher::parse_header_name;
    use crate::source::{NamedFile, ReadFailure};

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
        let (named, keys) = NamedFile::read(&settings.keys_file);
        context.shared.named_files.borrow_mut().push(named);
        let keys = keys.map_err(|unread| cannot_read(&unread, context.source.folder()));
        match keys.and_then(|keys| JwtVerifier::new(settings, &keys)) {
            Ok(jwt) => Some(UserSource::Jwt(Arc::new(jwt))),
            Err(problem) => {
                context.error(file.span, problem);
                None
            }
        }
    }

    /// The error for a keys file that cannot be read. It never shows the contents.
    fn cannot_read(unread: &ReadFailure, folder: &Path) -> Problem {
        let what_to_name = "name a file with a JSON Web Key Set or public keys in PEM";
        let error = match unread {
            ReadFailure::Failed(error) => error,
            ReadFailure::NotRegular => {
                return Problem::new("the keys file is not a regular file").hint(what_to_name);
            }
            ReadFailure::TooLarge => {
                let most = NamedFile::BYTES_MAX >> 10;
                return Problem::new(format!("the keys file is larger than {most} KiB"))
                    .hint(what_to_name);
            }
        };
        match error.kind() {
            io::ErrorKind::NotFound => {
                let folder = match folder.as_os_str().is_empty() {
                    true => "the directory that Tollgate runs in".to_string(),
                    false => format!("`{}`", folder.display()),
                };
                Problem::new("there is no such keys file")
                    .hint(format!("its name is relative to {folder}"))
            }
            io::ErrorKind::PermissionDenied => {
                Problem::new("the keys file cannot be read: permission denied")
                    .hint("let the user that runs Tollgate read it")
            }
            _ => Problem::new(format!("the keys file cannot be read: {error}")).hint(what_to_name),
        }
    }
}
