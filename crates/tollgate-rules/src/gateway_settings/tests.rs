use super::*;

#[test]
fn urls_have_a_scheme_a_host_and_a_port() {
    // The text; as it is shown again
    let rows = [
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("http://app", "http://app:80"),
        ("https://app", "https://app:443"),
        ("HTTPS://App.Example/", "https://app.example:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[2001:DB8::0:1]", "http://[2001:db8::1]:80"),
        ("http://my_service.ns.svc:65535", "http://my_service.ns.svc:65535"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example:80"),
    ];
    for (text, want) in rows {
        let url = UpstreamUrl::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        assert_eq!(url.to_string(), want);
        assert_eq!(UpstreamUrl::parse(want), Ok(url), "{want}");
    }
}

#[test]
fn wrong_urls_get_advice_and_secrets_are_not_repeated() {
    // The text; a part of the message; a part of the hint
    let rows = [
        ("127.0.0.1:3000", "does not begin with http://", "`http://127.0.0.1:3000`"),
        ("", "does not begin with http://", "`http://127.0.0.1:3000`"),
        ("ws://app", "is neither http nor https", "`https://app.example`"),
        ("unix:///run/app.sock", "is neither http nor https", "`http://127.0.0.1:3000`"),
        ("http://", "is empty", "`http://127.0.0.1:3000`"),
        ("http://:80", "is empty", "`http://127.0.0.1:3000`"),
        ("http://app/v1", "has a path, and requests are", "write `http://app`"),
        ("http://app:81/v1/", "has a path, and requests are", "write `http://app:81`"),
        ("http://app?canary", "the address \"http://app\" has a query", "write `http://app`"),
        ("http://app/?canary", "the address \"http://app/\" has a query", "write `http://app`"),
        ("https://app#canary", "has a fragment", "write `https://app`"),
        ("http://canary:canary@app", "has no user and no password", "before `@`"),
        ("http://canary@app", "has no user and no password", "before `@`"),
        ("canary:canary@app", "has no user and no password", "before `@`"),
        ("http://app:", "a port that is not from 1 to 65535", "`http://127.0.0.1:3000`"),
        ("http://app:0", "a port that is not from 1 to 65535", "`http://127.0.0.1:3000`"),
        ("http://app:65536", "a port that is not from 1 to 65535", "`http://127.0.0.1:3000`"),
        ("http://app:+80", "a port that is not from 1 to 65535", "`http://127.0.0.1:3000`"),
        ("http://::1:3000", "has an IPv6 address without brackets", "`http://[::1]:3000`"),
        ("http://[::1", "has an IPv6 address without brackets", "`http://[::1]:3000`"),
        ("http://[fe80::1%eth0]", "is a wrong IPv6 address", "`http://[::1]:3000`"),
        ("http://[::1]x", "is a wrong IPv6 address", "`http://[::1]:3000`"),
        ("http://[127.0.0.1]", "is a wrong IPv6 address", "`http://[::1]:3000`"),
        ("http://127.1", "is a wrong IPv4 address", "`http://127.0.0.1:3000`"),
        ("http://256.0.0.1", "is a wrong IPv4 address", "`http://127.0.0.1:3000`"),
        ("http://0X7F", "is a wrong IPv4 address", "`http://127.0.0.1:3000`"),
        ("http://a..b", "is neither a name nor an address", "`https://app.example`"),
        ("http://app.", "is neither a name nor an address", "`https://app.example`"),
        ("http://-app", "is neither a name nor an address", "`https://app.example`"),
        ("http://a b", "is neither a name nor an address", "`https://app.example`"),
        ("http://b\u{fc}cher", "is neither a name nor an address", "`https://app.example`"),
        ("http://a\r\nx", "is neither a name nor an address", "`https://app.example`"),
    ];
    for (text, message, hint) in rows {
        let problem = UpstreamUrl::parse(text).expect_err(text);
        assert!(problem.message.contains(message), "{text:?}: {problem}");
        assert!(
            problem.hint.as_deref().is_some_and(|one| one.contains(hint)),
            "{text:?}: {problem}"
        );
        assert!(!problem.to_string().contains("canary"), "{text:?}: {problem}");
    }
}

#[test]
fn hosts_are_exact_or_the_end_of_a_name() {
    // The host of a route; hosts that match; hosts that do not
    let rows: [(&str, &[&str], &[&str]); 4] = [
        ("Example.com", &["example.com"], &["www.example.com", "example.co", ""]),
        ("*.example.com", &["a.example.com", "a.b.example.com"], &["example.com", "aexample.com"]),
        ("127.0.0.1", &["127.0.0.1"], &["127.0.0.2"]),
        ("[0:0::1]", &["[::1]"], &["::1"]),
    ];
    for (text, matching, others) in rows {
        let host = RouteHost::parse(text).unwrap();
        assert!(matching.iter().all(|one| host.matches(one)), "{text}");
        assert!(!others.iter().any(|one| host.matches(one)), "{text}");
    }
    // The text; a part of the message
    let rows = [
        ("http://a", "is a URL"),
        ("a:80", "is neither a name nor an address"),
        ("::1", "without brackets"),
        ("*", "a star that is not the first label"),
        ("a.*.b", "a star that is not the first label"),
        ("*.*.b", "a star that is not the first label"),
        ("*.", "is empty"),
        ("*.10.0.0.1", "a star before an address"),
        ("a/b", "is neither a name nor an address"),
        ("", "is empty"),
    ];
    for (text, message) in rows {
        let problem = RouteHost::parse(text).expect_err(text);
        assert!(problem.message.contains(message) && problem.hint.is_some(), "{text}: {problem}");
    }
}

/// A route: its host, or nothing for every host, and its path.
fn route(host: &str, path: &str, upstream: usize) -> GatewayRoute {
    let host = Some(host).filter(|host| !host.is_empty());
    let host = host.map(|host| RouteHost::parse(host).expect("a host"));
    GatewayRoute { host, path: Pattern::parse(path).expect("a pattern"), upstream }
}

#[test]
fn the_first_route_that_matches_wins() {
    let upstream = |name: &str| {
        let url = UpstreamUrl::parse("http://127.0.0.1:3000").expect("a URL");
        Arc::new(UpstreamSettings::new(name, vec![url]))
    };
    let upstreams = ["zero", "one", "two", "three"].map(upstream);
    let mut settings = GatewaySettings::new(
        upstreams.into(),
        vec![
            route("api.example.com", "/v1/{*rest}", 0),
            route("*.example.com", "/v1/users/{id}", 1),
            route("", "/static/{*rest}", 2),
            route("", "/v1/users/me", 2),
            route("*.example.com", "/{*rest}", 3),
        ],
    );
    let rows = [
        (Some("api.example.com"), "/v1/users/7", "zero"),
        (Some("www.example.com"), "/v1/users/7", "one"),
        (Some("www.example.com"), "/v1/users/me?x=/static/", "one"),
        (Some("example.com"), "/v1/users/me", "two"),
        (None, "/v1/users/me", "two"),
        (Some("www.example.com"), "/static", "two"),
        (Some("www.example.com"), "/", "three"),
        (Some("other.example"), "/", "none"),
        (None, "/v1/users/7", "none"),
        // Read differently by servers, but with one route for all readings.
        (Some("other.example"), "/static//x", "two"),
        // Either a file below /static, or not.
        (Some("www.example.com"), "/static/..%2fx", "ambiguous"),
        (None, "/static/../x", "ambiguous"),
    ];
    let found = |settings: &GatewaySettings, host, path| match settings.route(host, path) {
        RouteMatch::Upstream(number) => settings.upstreams()[number].name.to_string(),
        RouteMatch::None => "none".into(),
        RouteMatch::Ambiguous => "ambiguous".into(),
    };
    for (host, path, want) in rows {
        assert_eq!(found(&settings, host, path), want, "{host:?} {path}");
    }
    settings.add_fallback(upstream("other"));
    for (path, want) in [("/", "other"), ("/a/../b", "other"), ("*", "other"), ("/static", "two")] {
        assert_eq!(found(&settings, None, path), want, "{path}");
    }
}

#[test]
fn a_route_covers_another_if_it_matches_all_of_its_requests() {
    // The earlier route, the later one; true if the first covers the second
    let rows = [
        (("", "/{*r}"), ("a.b", "/x"), true),
        (("", "/a/{*r}"), ("", "/a"), true),
        (("", "/a/{*r}"), ("", "/a/{id}/{*r}"), true),
        (("", "/a/{id}"), ("", "/a/b"), true),
        (("", "/a/{id}"), ("", "/a/{*r}"), false),
        (("", "/a/{id}"), ("", "/a"), false),
        (("", "/a/b"), ("", "/a/{id}"), false),
        (("", "/a"), ("", "/a/b"), false),
        (("", "/a"), ("", "/{*r}"), false),
        (("a.b", "/{*r}"), ("", "/x"), false),
        (("*.b", "/{*r}"), ("a.b", "/x"), true),
        (("*.b", "/{*r}"), ("*.a.b", "/x"), true),
        (("*.a.b", "/{*r}"), ("*.b", "/x"), false),
        (("*.b", "/{*r}"), ("b", "/x"), false),
        (("a.b", "/{*r}"), ("*.b", "/x"), false),
    ];
    for (earlier, later, want) in rows {
        let [one, other] = [earlier, later].map(|(host, path)| route(host, path, 0));
        assert_eq!(one.covers(&other), want, "{earlier:?} {later:?}");
    }
}
