//! `cors:` becomes settings.

use super::context::CompileContext;
use crate::Problem;
use crate::cors::{CorsSettings, parse_origin};
use crate::yaml::YamlNode;

/// Reads `cors`. `None`: something in it was reported.
pub(super) fn read(context: CompileContext<'_>, node: &YamlNode) -> Option<CorsSettings> {
    let origins = node.get("origins")?;
    let listed = context.read_each(origins, parse_origin)?;
    if listed.len() > CorsSettings::ORIGINS_MAX {
        let most = CorsSettings::ORIGINS_MAX;
        let problem = Problem::new(format!("there are more than {most} origins"))
            .hint("write `origins: \"*\"` if every page may read refusals");
        context.error(origins.span, problem);
        return None;
    }
    let is_on = |name: &str| node.get(name).and_then(YamlNode::text) == Some("true");
    let any_origin = listed.iter().any(Option::is_none);
    let credentials = is_on("credentials");
    if any_origin && credentials {
        let problem = Problem::new("`origins: \"*\"` cannot stand beside `credentials: true`")
            .hint("list the origins: browsers send no cookies where all pages may read the answer");
        context.error(origins.span, problem);
        return None;
    }
    let origins = listed.into_iter().flatten().collect();
    Some(CorsSettings { origins, any_origin, expose: is_on("expose"), credentials })
}
