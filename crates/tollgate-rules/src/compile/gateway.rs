//! `upstreams:` and `routes:` of all files become the gateway's settings.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Span};
use crate::gateway_settings::{GatewayRoute, GatewaySettings, RouteHost, UpstreamSettings};
use crate::pattern::Pattern;
use crate::yaml::YamlNode;

use super::RulesFiles;
use super::context::{CompileContext, optional};
use super::rule::is_name;
use super::upstream;

/// Reads the upstreams and routes of all files; what could not be read was reported.
pub(super) fn read(files: &RulesFiles<'_, '_>) -> GatewaySettings {
    let upstreams = WrittenUpstreams::read(files);
    let routes = read_routes(files, &upstreams);
    check_unreachable(&routes);
    let settings: Vec<_> = upstreams.list.iter().map(|one| one.settings.clone()).collect();
    let written = written_routes(files);
    if written > 0 {
        // A route with errors may be the one that leads to an upstream.
        if routes.len() == written {
            upstreams.check_unused(&routes);
        }
        return GatewaySettings::new(settings, routes.into_iter().map(|one| one.route).collect());
    }
    match &upstreams.list[..] {
        [] => GatewaySettings::default(),
        [only] => {
            let mut settings = GatewaySettings::default();
            settings.add_fallback(only.settings.clone());
            settings
        }
        [first, second, ..] => {
            let problem = Problem::new("there are several upstreams and no `routes`");
            let name = first.settings.name.clone();
            let hint = format!("write `routes: [{{ path: \"/{{*rest}}\", upstream: {name} }}]`");
            second.context.error(second.name_span, problem.hint(hint));
            GatewaySettings::default()
        }
    }
}

/// Number of routes in all files, those with errors included.
fn written_routes(files: &RulesFiles<'_, '_>) -> usize {
    let lists = files.files.iter().filter_map(|file| file.root.get("routes"));
    lists.map(|routes| routes.items().len()).sum()
}

/// An upstream and the place of its name.
struct WrittenUpstream<'a> {
    context: CompileContext<'a>,
    name_span: Span,
    settings: Arc<UpstreamSettings>,
}

/// The upstreams of all files.
struct WrittenUpstreams<'a> {
    /// Bound: the entries of all files; more than [`GatewaySettings::UPSTREAMS_MAX`] are an error.
    list: Vec<WrittenUpstream<'a>>,
    /// Their numbers by name, of equal names the first.
    numbers: HashMap<Box<str>, usize>,
}

impl<'a> WrittenUpstreams<'a> {
    fn read(files: &'a RulesFiles<'_, '_>) -> WrittenUpstreams<'a> {
        let mut read = WrittenUpstreams { list: Vec::new(), numbers: HashMap::new() };
        for file in &files.files {
            let context = files.context(file);
            let entries = file.root.get("upstreams").map(YamlNode::entries).unwrap_or_default();
            for entry in entries {
                let settings = Arc::new(upstream::read(context, &entry.key, &entry.node));
                read.push(WrittenUpstream { context, name_span: entry.key_span, settings });
            }
        }
        if let Some(one) = read.list.get(GatewaySettings::UPSTREAMS_MAX) {
            let most = GatewaySettings::UPSTREAMS_MAX;
            let problem = Problem::new(format!("there are more than {most} upstreams"))
                .hint("list interchangeable servers as `addresses` of one upstream");
            one.context.error(one.name_span, problem);
        }
        read
    }

    fn push(&mut self, one: WrittenUpstream<'a>) {
        let name = &one.settings.name;
        if !is_name(name) {
            let problem = Problem::new(format!("{name:?} cannot be the name of an upstream"))
                .hint("write letters, digits, `_` and `-`, at most 64, such as `app`");
            one.context.error(one.name_span, problem);
        }
        let first = *self.numbers.entry(name.clone()).or_insert(self.list.len());
        // In one file YAML allows no name twice, so these are two files.
        if let Some(first) = self.list.get(first) {
            let problem = Problem::new(format!("two upstreams are called `{name}`"))
                .hint("give one of them another name");
            let diagnostic = Diagnostic::error(one.context.source, one.name_span, problem);
            let note = "the first is here";
            one.context.push(diagnostic.also(first.context.source, first.name_span, note));
        }
        self.list.push(one);
    }

    /// The number of an upstream, or advice on which one was meant.
    fn number(&self, context: CompileContext<'_>, name: &str) -> Result<usize, Problem> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let names = self.list.iter().map(|one| &*one.settings.name);
        let hint = context.did_you_mean(name, names, || {
            format!("write `upstreams: {{ {name}: \"http://127.0.0.1:3000\" }}`")
        });
        Err(Problem::new(format!("there is no upstream `{name}`")).hint(hint))
    }

    /// Warns of upstreams that no route leads to.
    fn check_unused(&self, routes: &[WrittenRoute<'_>]) {
        let mut is_used = vec![false; self.list.len()];
        routes.iter().for_each(|one| is_used[one.route.upstream] = true);
        for (one, _) in self.list.iter().zip(is_used).filter(|(_, is_used)| !is_used) {
            let name = &one.settings.name;
            let problem = Problem::new(format!("no route leads to the upstream `{name}`"))
                .hint("write a route to it, or remove it");
            one.context.warn(one.name_span, problem);
        }
    }
}

/// A route and its place.
struct WrittenRoute<'a> {
    context: CompileContext<'a>,
    span: Span,
    route: GatewayRoute,
}

fn read_routes<'a>(
    files: &'a RulesFiles<'_, '_>,
    upstreams: &WrittenUpstreams<'_>,
) -> Vec<WrittenRoute<'a>> {
    let mut routes = Vec::new();
    let mut count = 0;
    for file in &files.files {
        let context = files.context(file);
        for node in file.root.get("routes").map(YamlNode::items).unwrap_or_default() {
            count += 1;
            if count == GatewaySettings::ROUTES_MAX + 1 {
                let most = GatewaySettings::ROUTES_MAX;
                let problem = Problem::new(format!("there are more than {most} routes"))
                    .hint("write patterns such as `/users/{*rest}` in place of single paths");
                context.error(node.span, problem);
            }
            let route = read_route(context, node, upstreams);
            routes.extend(route.map(|route| WrittenRoute { context, span: node.span, route }));
        }
    }
    // Comparing each with each of too many would take long.
    routes.truncate(GatewaySettings::ROUTES_MAX);
    routes
}

/// Reads a route. `None`: something in it was reported.
fn read_route(
    context: CompileContext<'_>,
    node: &YamlNode,
    upstreams: &WrittenUpstreams<'_>,
) -> Option<GatewayRoute> {
    let host = optional(node.get("host"), |node| context.read(node, RouteHost::parse));
    let path = node.get("path").and_then(|node| context.read(node, Pattern::parse));
    let upstream = node.get("upstream");
    let number =
        upstream.and_then(|node| context.read(node, |name| upstreams.number(context, name)));
    Some(GatewayRoute { host: host?, path: path?, upstream: number? })
}

/// Reports routes that no request reaches, because an earlier one matches all of theirs.
fn check_unreachable(routes: &[WrittenRoute<'_>]) {
    for (number, later) in routes.iter().enumerate() {
        let covering = routes[..number].iter().find(|one| one.route.covers(&later.route));
        let Some(earlier) = covering else { continue };
        let (context, other) = (later.context, earlier.context);
        let is_equal = later.route.covers(&earlier.route);
        // The order of files is that of their names, which says nothing about their routes.
        let diagnostic = match is_equal && context.source.name() != other.source.name() {
            true => {
                let problem = Problem::new("two files have a route for this host and path")
                    .hint("keep one of the two");
                Diagnostic::error(context.source, later.span, problem)
            }
            false => {
                let problem = Problem::new(
                    "this route is never used: an earlier route matches all of its requests",
                )
                .hint("the first route that matches wins: move this one up, or remove it");
                Diagnostic::warning(context.source, later.span, problem)
            }
        };
        context.push(diagnostic.also(other.source, earlier.span, "the earlier one is here"));
    }
}
