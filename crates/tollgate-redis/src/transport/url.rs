//! Where a shared store is, as people write it: `redis://…`, `rediss://…`, `unix://…`,
//! `redis-sentinel://…`, `redis-cluster://…`.

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;

use crate::script::keys::SLOTS_MAX;

/// Hosts of one URL. More are never needed to find a cluster or a primary.
const HOSTS_MAX: usize = 64;
/// Bytes of a URL.
const URL_MAX: usize = 4096;
/// Bytes of a host.
const HOST_MAX: usize = 253;
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The address of a shared store. Its text form has no password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) topology: Topology,
    /// Servers to begin with; one for a single server. Bound: [`HOSTS_MAX`].
    pub(crate) hosts: Vec<Address>,
    pub(crate) login: Login,
    /// The login at the sentinels, which have users of their own.
    pub(crate) sentinel_login: Login,
    pub(crate) database: u32,
    pub(crate) tls: Option<TlsFiles>,
    /// Number of hash tags that the subjects of a cluster share; `None` gives each its own.
    pub(crate) slots: Option<NonZeroU16>,
}

/// The arrangement of the servers behind a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    /// Sentinels, and the name they know the primary by.
    Sentinel {
        primary: String,
    },
    Cluster,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// A user and a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Files that TLS needs beyond what the system trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) cert_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

/// An error in the URL of a store; it says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

type UrlResult<T> = Result<T, UrlError>;

fn url_error<T>(text: impl Into<String>) -> UrlResult<T> {
    Err(UrlError(text.into()))
}

impl StoreUrl {
    /// Reads a URL. Errors never repeat its user, its password or what could be part of them.
    pub fn parse(url: &str) -> Result<StoreUrl, UrlError> {
        let url = StoreUrl::parse_for_any_build(url)?;
        match url.tls {
            Some(_) if !cfg!(feature = "tls") => url_error(
                "the store's URL asks for TLS, and this program was built without it: enable the feature \
                 `tls` of the crate `tollgate-redis`, or leave out `rediss://` and `tls=true`",
            ),
            _ => Ok(url),
        }
    }

    /// Reads a URL that may ask for TLS, even if this build has none.
    fn parse_for_any_build(url: &str) -> UrlResult<StoreUrl> {
        if url.len() > URL_MAX {
            return url_error(format!("the URL of the store is longer than {URL_MAX} bytes"));
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return url_error(
                "the store has no scheme: write `redis://HOST:PORT`, `rediss://HOST:PORT` (TLS), \
                 `unix:///PATH`, `redis-sentinel://HOST,HOST/NAME` or `redis-cluster://HOST,HOST`",
            );
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @ ends the login: a password may hold one that nobody escaped.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Login::parse(login)?, rest),
            None => (Login::default(), rest),
        };
        let (hosts, path) = match rest.find('/') {
            Some(slash) => (&rest[..slash], &rest[slash..]),
            None => (rest, ""),
        };
        let parts = UrlParts { hosts, path, query: UrlQuery::parse(query)?, login };
        match scheme {
            "redis" => parts.single(false),
            "rediss" => parts.single(true),
            "unix" | "redis+unix" => parts.unix(),
            "redis-sentinel" => parts.sentinel(),
            "redis-cluster" => parts.cluster(),
            _ => {
                // Anything else may be a password that stands in the wrong place.
                let fits = |c: char| c.is_ascii_alphabetic() || matches!(c, '+' | '-');
                let shown = match scheme.len() <= 20 && scheme.chars().all(fits) {
                    true => format!("{scheme:?}"),
                    false => "as is written".to_owned(),
                };
                url_error(format!(
                    "there is no store {shown}: write `redis`, `rediss`, `unix`, `redis-sentinel` \
                     or `redis-cluster` before `://`"
                ))
            }
        }
    }

    /// Returns true if the keys of a call must be in one slot.
    pub fn is_cluster(&self) -> bool {
        self.topology == Topology::Cluster
    }
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<StoreUrl, UrlError> {
        StoreUrl::parse(url)
    }
}

/// The parts of a URL before they are interpreted.
struct UrlParts<'a> {
    hosts: &'a str,
    path: &'a str,
    query: UrlQuery,
    login: Login,
}

impl UrlParts<'_> {
    fn single(mut self, tls: bool) -> UrlResult<StoreUrl> {
        let hosts = self.hosts(REDIS_PORT)?;
        if hosts.len() != 1 {
            return url_error(
                "`redis://` has one host: for several write `redis-sentinel://` or \
                 `redis-cluster://`",
            );
        }
        let database = database(self.path.trim_start_matches('/'))?;
        let tls = self.tls(tls)?;
        self.finish(Topology::Single, hosts, database, tls)
    }

    fn unix(mut self) -> UrlResult<StoreUrl> {
        if !self.hosts.is_empty() || self.path.len() < 2 {
            return url_error(
                "a Unix socket is written with its whole path: `unix:///run/redis.sock`",
            );
        }
        let hosts = vec![Address::Unix(unescape(self.path)?.into())];
        let database = database(self.query.take("db").as_deref().unwrap_or(""))?;
        self.finish(Topology::Single, hosts, database, None)
    }

    fn sentinel(mut self) -> UrlResult<StoreUrl> {
        let hosts = self.hosts(SENTINEL_PORT)?;
        let path = self.path.trim_start_matches('/');
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return url_error(
                "the sentinels are not told which primary: write its name behind them, \
                 `redis-sentinel://HOST,HOST/mymaster`",
            );
        }
        let topology = Topology::Sentinel { primary: unescape(name)? };
        let database = database(db)?;
        let tls = self.query.take("tls");
        let tls = self.tls(is_true(tls)?)?;
        let (user, password) =
            (self.query.take("sentinel_user"), self.query.take("sentinel_password"));
        let mut url = self.finish(topology, hosts, database, tls)?;
        url.sentinel_login = Login { user, password };
        Ok(url)
    }

    fn cluster(mut self) -> UrlResult<StoreUrl> {
        let hosts = self.hosts(REDIS_PORT)?;
        if !matches!(self.path, "" | "/" | "/0") {
            return url_error("a cluster has only database 0: write nothing behind the hosts");
        }
        let tls = self.query.take("tls");
        let tls = self.tls(is_true(tls)?)?;
        let slots = self.query.take("slots").map(slots).transpose()?;
        let url = self.finish(Topology::Cluster, hosts, 0, tls)?;
        Ok(StoreUrl { slots, ..url })
    }

    fn finish(
        self,
        topology: Topology,
        hosts: Vec<Address>,
        database: u32,
        tls: Option<TlsFiles>,
    ) -> UrlResult<StoreUrl> {
        self.query.reject_unknown()?;
        let sentinel_login = Login::default();
        let (login, slots) = (self.login, None);
        Ok(StoreUrl { topology, hosts, login, sentinel_login, database, tls, slots })
    }

    fn hosts(&self, port: u16) -> UrlResult<Vec<Address>> {
        let hosts: Vec<_> =
            self.hosts.split(',').take(HOSTS_MAX + 1).map(|text| host(text, port)).collect();
        if hosts.len() > HOSTS_MAX {
            return url_error(format!("a URL has at most {HOSTS_MAX} hosts: a few are enough"));
        }
        hosts.into_iter().collect()
    }

    fn tls(&mut self, on: bool) -> UrlResult<Option<TlsFiles>> {
        let mut file = |name| self.query.take(name).map(PathBuf::from);
        let files = TlsFiles {
            ca_file: file("ca_file"),
            cert_file: file("cert_file"),
            key_file: file("key_file"),
        };
        if files.cert_file.is_some() != files.key_file.is_some() {
            return url_error("a client certificate needs both `cert_file` and `key_file`");
        }
        match on {
            true => Ok(Some(files)),
            false if files == TlsFiles::default() => Ok(None),
            false => url_error(
                "certificates are given and TLS is not on: write `rediss://`, or `tls=true` with \
                 sentinels and clusters",
            ),
        }
    }
}

/// `host`, `host:port`, `[2001:db8::1]:port`.
fn host(text: &str, default_port: u16) -> UrlResult<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or("?"))),
            None => return url_error("an IPv6 host has no end: write `[2001:db8::1]:6379`"),
        },
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return url_error("an IPv6 host stands in brackets: write `[2001:db8::1]:6379`");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if !is_host(host) {
        return url_error(
            "a host is missing or is none: write `HOST:PORT`, such as `127.0.0.1:6379`",
        );
    }
    let port = match port {
        None | Some("") => default_port,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return url_error("a port is not a number from 1 to 65535"),
        },
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

/// Returns true if the text can be the name or the address of a host.
pub(crate) fn is_host(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    (1..=HOST_MAX).contains(&text.len()) && text.chars().all(fits)
}

fn database(text: &str) -> UrlResult<u32> {
    match text {
        "" => Ok(0),
        text => text.parse().or_else(|_| {
            url_error("the database is not a number: write `redis://HOST:PORT/0` or leave it out")
        }),
    }
}

fn slots(text: String) -> UrlResult<NonZeroU16> {
    match text.parse::<NonZeroU16>() {
        Ok(slots) if slots.get() <= SLOTS_MAX => Ok(slots),
        _ => url_error(format!(
            "`slots` is not a number from 1 to {SLOTS_MAX}: write about four for each node, such as \
             `slots=12`, or leave it out"
        )),
    }
}

fn is_true(text: Option<String>) -> UrlResult<bool> {
    match text.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => url_error("`tls` is neither `true` nor `false`"),
    }
}

impl Login {
    fn parse(text: &str) -> UrlResult<Login> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let part = |text: &str| match text {
            "" => Ok(None),
            text => unescape(text).map(Some),
        };
        let login = Login { user: part(user)?, password: part(password)? };
        if login.user.is_some() && login.password.is_none() {
            return url_error(
                "the user has no password: write `USER:PASSWORD@HOST`, or `:PASSWORD@HOST` for \
                 the default user",
            );
        }
        Ok(login)
    }
}

/// The parameters behind the question mark. Bound: [`URL_MAX`].
struct UrlQuery(Vec<(String, String)>);

impl UrlQuery {
    fn parse(text: &str) -> UrlResult<UrlQuery> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((name.to_owned(), unescape(value)?))
        });
        Ok(UrlQuery(pairs.collect::<UrlResult<_>>()?))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn reject_unknown(&self) -> UrlResult<()> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if name == "insecure" => url_error(
                "`insecure` does not exist: a store whose certificate the system does not trust \
                 is reached with `ca_file=PATH`",
            ),
            // Not repeated: it may be the end of a password with a question mark in it.
            Some(_) => url_error(
                "the store does not know a parameter: there are `ca_file`, `cert_file` and \
                 `key_file` with TLS, `tls` with sentinels and clusters, `sentinel_user` and \
                 `sentinel_password` with sentinels, `slots` with clusters, `db` with Unix sockets; \
                 a ? in a password is written %3F",
            ),
        }
    }
}

/// Takes `%41` for `A`.
fn unescape(text: &str) -> UrlResult<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(code) = code else {
            return url_error(
                "a % in the URL of the store is not followed by two digits: write %25",
            );
        };
        bytes.push(code);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).or_else(|_| url_error("the URL of the store is not UTF-8"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (&self.topology, &self.hosts[0], &self.tls) {
            (Topology::Single, Address::Unix(_), _) => "unix://",
            (Topology::Single, _, None) => "redis://",
            (Topology::Single, _, Some(_)) => "rediss://",
            (Topology::Sentinel { .. }, ..) => "redis-sentinel://",
            (Topology::Cluster, ..) => "redis-cluster://",
        })?;
        if self.login != Login::default() {
            write!(f, "{}:***@", self.login.user.as_deref().unwrap_or(""))?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if index == 0 { "" } else { "," })?;
        }
        if let Topology::Sentinel { primary } = &self.topology {
            write!(f, "/{primary}")?;
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_understood_and_how_they_are_shown() {
        for (url, shown) in [
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://127.0.0.1:7000/3", "redis://127.0.0.1:7000/3"),
            ("redis://127.0.0.1:7000/", "redis://127.0.0.1:7000"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            ("redis://[2001:db8::1]", "redis://[2001:db8::1]:6379"),
            ("redis://:s3cret@h", "redis://:***@h:6379"),
            ("redis://ann:s3c@ret@h:1/2", "redis://ann:***@h:1/2"),
            ("rediss://ann:s%40cret@h", "rediss://ann:***@h:6379"),
            ("rediss://h?ca_file=/etc/ca.pem&cert_file=c&key_file=k", "rediss://h:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("unix:///run/redis.sock?db=4", "unix:///run/redis.sock/4"),
            ("redis-cluster://a,b:7001,[::1]:7002", "redis-cluster://a:6379,b:7001,[::1]:7002"),
            ("redis-cluster://u:s3cret@a?tls=true", "redis-cluster://u:***@a:6379"),
            ("redis-sentinel://a,b:1/main", "redis-sentinel://a:26379,b:1/main"),
            (
                "redis-sentinel://u:s3cret@a/main/5?sentinel_user=x&sentinel_password=s3cret",
                "redis-sentinel://u:***@a:26379/main/5",
            ),
        ] {
            let parsed =
                StoreUrl::parse_for_any_build(url).unwrap_or_else(|e| panic!("{url}: {e}"));
            assert_eq!(parsed.to_string(), shown, "{url}");
            assert!(!format!("{parsed:?}{:?}", parsed.login).contains("s3c"), "{url}");
        }
    }

    #[test]
    fn parts_are_where_they_belong() {
        let url =
            StoreUrl::parse_for_any_build("rediss://ann:s%40c%2Fret@h/7?ca_file=/a%20b").unwrap();
        assert_eq!(url.login.user.as_deref(), Some("ann"));
        assert_eq!(url.login.password.as_deref(), Some("s@c/ret"));
        assert_eq!(url.database, 7);
        assert_eq!(url.tls.unwrap().ca_file, Some("/a b".into()));
        let url = "redis-sentinel://a/m?sentinel_password=p&tls=true";
        let url = StoreUrl::parse_for_any_build(url).unwrap();
        assert_eq!(url.topology, Topology::Sentinel { primary: "m".into() });
        assert_eq!(url.sentinel_login.password.as_deref(), Some("p"));
        assert!(url.tls.is_some() && url.login.password.is_none());
        let url = StoreUrl::parse_for_any_build("redis-cluster://a").unwrap();
        assert!(url.is_cluster() && url.slots.is_none());
        let url = StoreUrl::parse_for_any_build("redis-cluster://a?slots=12").unwrap();
        assert_eq!(url.slots, NonZeroU16::new(12));
    }

    #[test]
    fn errors_say_what_to_write_and_repeat_no_secret() {
        let many = format!("redis-cluster://{}", vec!["h"; 65].join(","));
        let long = format!("redis://{}", "h".repeat(URL_MAX));
        for (url, says) in [
            ("", "`redis://HOST:PORT`"),
            ("localhost:6379", "no scheme"),
            ("http://localhost", "there is no store \"http\""),
            ("user:s3cret://x", "there is no store as is written"),
            ("redis://", "`HOST:PORT`"),
            ("redis://h:0", "1 to 65535"),
            ("redis://h:70000", "1 to 65535"),
            ("redis://::1", "in brackets"),
            ("redis://[::1", "no end"),
            ("redis://[::1]x", "1 to 65535"),
            ("redis://a,b", "redis-cluster://"),
            ("redis://h/zero", "not a number"),
            ("redis://h?ca_file=x", "`rediss://`"),
            ("rediss://h?insecure", "`ca_file=PATH`"),
            ("rediss://h?cert_file=x", "both"),
            ("redis://h?s3cret=1", "does not know"),
            ("redis://s3cret@h", "no password"),
            ("redis://u:s3cret%zz@h", "%25"),
            ("redis://u:s3cret%+1@h", "%25"),
            ("redis://u:s3cret%@h", "%25"),
            ("redis://u:%ff@h", "UTF-8"),
            ("redis://u:s3cret@h h", "`HOST:PORT`"),
            ("unix://run/redis.sock", "`unix:///run/redis.sock`"),
            ("redis-sentinel://a,b", "which primary"),
            ("redis-cluster://a/1", "only database 0"),
            ("redis-cluster://a?tls=yes", "neither"),
            ("redis-cluster://a?slots=0", "from 1 to 1024"),
            ("redis-cluster://a?slots=1025", "from 1 to 1024"),
            ("redis-cluster://a?slots=many", "`slots=12`"),
            ("redis-cluster://a?slots=", "`slots=12`"),
            ("redis://a?slots=12", "`slots` with clusters"),
            (many.as_str(), "at most 64"),
            (long.as_str(), "longer than"),
        ] {
            let error = StoreUrl::parse_for_any_build(url).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }

    #[test]
    fn tls_is_refused_only_by_a_build_without_it() {
        for url in ["rediss://localhost", "redis-cluster://localhost?tls=true"] {
            let found = StoreUrl::parse(url).map(|url| url.tls.is_some());
            let says = |text: String| text.contains("feature `tls`") && text.contains("`tls=true`");
            let found = found.map_err(|error| says(error.to_string()));
            let want = if cfg!(feature = "tls") { Ok(true) } else { Err(true) };
            assert_eq!(found, want, "{url}");
        }
    }
}
