//! An entry of `upstreams:` becomes [`UpstreamSettings`].

use std::collections::HashSet;
use std::time::Duration;

use crate::Problem;
use crate::diagnostic::Span;
use crate::gateway_settings::{
    CaFile, EjectionSettings, HealthProbe, UpstreamHost, UpstreamLimitFields, UpstreamSettings,
    UpstreamUrl, UpstreamVersion, parse_host,
};
use crate::yaml::YamlNode;

use super::context::CompileContext;
use super::{named_file, quantities};

/// Reads an upstream: an address, or a map of settings. Settings that could not be read were reported and have their
/// defaults.
pub(super) fn read(context: CompileContext<'_>, name: &str, node: &YamlNode) -> UpstreamSettings {
    let addresses = match node.text() {
        Some(_) => context.read(node, UpstreamUrl::parse).into_iter().collect(),
        None => node.get("addresses").map(|node| addresses(context, node)).unwrap_or_default(),
    };
    let mut settings = UpstreamSettings::new(name, addresses);
    let text = |field: &str| node.get(field).and_then(YamlNode::text);
    settings.version = match text("version") {
        Some("http1") => UpstreamVersion::Http1,
        Some("http2") => UpstreamVersion::Http2,
        _ => UpstreamVersion::Auto,
    };
    settings.host = match text("host") {
        Some("upstream") => UpstreamHost::Upstream,
        _ => UpstreamHost::Client,
    };
    settings.limit_fields = match text("limit_headers") {
        Some("keep") => UpstreamLimitFields::Keep,
        Some("apart") => UpstreamLimitFields::Apart,
        _ => UpstreamLimitFields::Replace,
    };
    read_tls(context, node, &mut settings);
    read_bounds(context, node, &mut settings);
    if let Some(eject) = node.get("eject") {
        settings.ejection = ejection(context, eject);
    }
    settings.health = node.get("health").and_then(|node| health(context, node));
    settings
}

fn addresses(context: CompileContext<'_>, node: &YamlNode) -> Vec<UpstreamUrl> {
    let each = node.each();
    let most = UpstreamSettings::ADDRESSES_MAX;
    if each.is_empty() || each.len() > most {
        let problem = Problem::new(format!("an upstream has 1 to {most} addresses"))
            .hint("write `addresses: [\"http://127.0.0.1:3000\"]`");
        context.error(node.span, problem);
    }
    let mut known = HashSet::new();
    let mut urls = Vec::new();
    for item in each {
        let Some(url) = context.read(item, UpstreamUrl::parse) else { continue };
        if !known.insert(url.clone()) {
            let problem = Problem::new(format!("the address {url} is given twice"));
            context.error(item.span, problem.hint("write each address once"));
        }
        urls.push(url);
    }
    urls
}

/// Reads the settings of TLS, and warns if no address uses it.
fn read_tls(context: CompileContext<'_>, node: &YamlNode, settings: &mut UpstreamSettings) {
    if let Some(file) = node.get("ca_file") {
        settings.ca_file = context.read(file, |name| ca_file(context, name));
    }
    if let Some(name) = node.get("server_name") {
        settings.server_name = context.read(name, |text| {
            parse_host(text).map_err(|what| {
                Problem::new(format!("the name {text:?} {what}"))
                    .hint("write the name in the server's certificate, such as `api.internal`")
            })
        });
    }
    let plain = !settings.addresses.is_empty() && settings.addresses.iter().all(|url| !url.tls);
    for entry in ["ca_file", "server_name"].iter().filter_map(|field| node.entry(field)) {
        if plain {
            let what = format!("no address is https, so `{}` does nothing", entry.key);
            let problem = Problem::new(what).hint("write `https://` before the address");
            context.warn(entry.key_span, problem);
        }
    }
}

fn ca_file(context: CompileContext<'_>, name: &str) -> Result<CaFile, Problem> {
    const WANTED: &str = "name a PEM file with certificates, `-----BEGIN CERTIFICATE-----`";
    let path = context.source.folder().join(name);
    let pem = named_file::read(context, &path, "file with certificates", WANTED)?;
    let has_line = |line: &str| pem.windows(line.len()).any(|part| part == line.as_bytes());
    if !has_line("-----BEGIN CERTIFICATE-----") || !has_line("-----END CERTIFICATE-----") {
        return Err(Problem::new("the file has no certificate in PEM").hint(WANTED));
    }
    Ok(CaFile { path, pem: pem.into() })
}

/// Reads timeouts, retries and the number of connections.
fn read_bounds(context: CompileContext<'_>, node: &YamlNode, settings: &mut UpstreamSettings) {
    for (field, value) in [
        ("connect_timeout", &mut settings.connect_timeout),
        ("response_timeout", &mut settings.response_timeout),
        ("idle_timeout", &mut settings.idle_timeout),
    ] {
        read_time(context, node, field, value);
    }
    let whole = |field: &str| node.get(field).and_then(YamlNode::whole);
    if let Some(retries) = whole("retries") {
        settings.retries = u8::try_from(retries).unwrap_or(u8::MAX);
    }
    if let Some(connections) = whole("max_connections") {
        settings.connections_max = usize::try_from(connections).unwrap_or(usize::MAX);
    }
    if let Some(budget) = node.get("retry_budget") {
        let percent = context.read(budget, quantities::whole_percent);
        settings.retry_budget_percent = percent.unwrap_or(settings.retry_budget_percent);
    }
}

/// Reads a time, if the field is there.
fn read_time(
    context: CompileContext<'_>,
    node: &YamlNode,
    field: &str,
    value: &mut Duration,
) -> Option<Span> {
    let node = node.get(field)?;
    *value = context.read(node, quantities::timeout)?;
    Some(node.span)
}

/// Reads `eject`: the word `none`, or a map.
fn ejection(context: CompileContext<'_>, node: &YamlNode) -> Option<EjectionSettings> {
    let mut duration = Duration::ZERO;
    read_time(context, node, "for", &mut duration)?;
    let after = u32::try_from(node.get("after")?.whole()?).ok()?;
    Some(EjectionSettings { after, duration })
}

fn health(context: CompileContext<'_>, node: &YamlNode) -> Option<HealthProbe> {
    let path = node.get("path").and_then(|node| context.read(node, probe_path));
    let mut interval = Duration::from_secs(5);
    read_time(context, node, "interval", &mut interval);
    let mut timeout = Duration::from_secs(1).min(interval);
    let span = read_time(context, node, "timeout", &mut timeout);
    if let Some(span) = span.filter(|_| timeout > interval) {
        let problem = Problem::new("the timeout of a health check is longer than its interval")
            .hint("write a longer `interval`, or a shorter `timeout`");
        context.error(span, problem);
    }
    let count = |field: &str| {
        let whole = node.get(field).and_then(YamlNode::whole).unwrap_or(2);
        u32::try_from(whole).unwrap_or(u32::MAX)
    };
    let (healthy, unhealthy) = (count("healthy"), count("unhealthy"));
    Some(HealthProbe { path: path?, interval, timeout, healthy, unhealthy })
}

/// Reads the path of a health check, with or without a query.
fn probe_path(text: &str) -> Result<Box<str>, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte);
    if text.starts_with('/') && text.bytes().all(is_plain) {
        return Ok(text.into());
    }
    Err(Problem::new(format!("{text:?} is not a path that can be requested"))
        .hint("write a path such as `/healthz`, other characters as `%20`"))
}
