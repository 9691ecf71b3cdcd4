//! TLS: to one server, to every node of a cluster, and to sentinels and the primary that they name.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use testkit::process::ChildProcess;
use testkit::redis::{PRIMARY_NAME, RedisTlsFiles, TestRedisCluster, TestRedisLaunch};
use testkit::wait;

use super::*;

/// Makes a certificate authority, a certificate of 127.0.0.1 and its key.
fn certificates(folder: &Path) -> RedisTlsFiles {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::from_params(&params, &ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let mut leaf = rcgen::CertificateParams::new(names).unwrap();
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "server");
    let cert = leaf.signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    RedisTlsFiles {
        ca: write("ca.pem", ca.pem()),
        cert: write("cert.pem", cert.pem()),
        key: write("key.pem", key.serialize_pem()),
    }
}

#[test]
fn tls_is_spoken_to_whom_the_given_authority_vouches_for() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let (ca, cert, key) = (tls.ca.clone(), tls.cert.clone(), tls.key.clone());
    let server = TestRedisLaunch::new().tls(tls).args(&["--tls-auth-clients", "yes"]).start();
    let ca_file = format!("ca_file={}", ca.display());
    let client = format!("cert_file={}&key_file={}", cert.display(), key.display());
    let url = format!("rediss://{}?{ca_file}&{client}", server.address());
    let store = CountingStore::at(&url, PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
    // Without a client's certificate, without the authority, without TLS.
    for (url, says) in [
        (format!("rediss://{}?{ca_file}", server.address()), ""),
        (format!("rediss://{}?{client}", server.address()), "certificate"),
        (format!("redis://{}", server.address()), ""),
        (format!("rediss://{}?ca_file=/nowhere.pem", server.address()), "/nowhere.pem"),
    ] {
        let store = CountingStore::at(&url, PLENTY);
        let error = wait::until("a failure", || store.add("a").err());
        let classes = [ErrorClass::Connect, ErrorClass::Closed, ErrorClass::Protocol];
        assert!(classes.contains(&error.class) && error.detail.contains(says), "{url}: {error}");
    }
}

#[test]
fn every_node_of_a_cluster_is_asked_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let ca_file = tls.ca.display().to_string();
    let cluster = TestRedisCluster::launch(
        3,
        false,
        &TestRedisLaunch::new().tls(tls).args(&["--tls-cluster", "yes"]),
    );
    // The map names the others, and they are reached like the one that was asked for it.
    let url = format!("redis-cluster://{}?tls=true", cluster.node(0).address());
    let store = CountingStore::at(&format!("{url}&ca_file={ca_file}"), PLENTY);
    for n in 0..30 {
        assert_eq!(store.add_at(&format!("k{n}")).unwrap(), 1);
    }
    let stats = store.link.stats();
    assert!(stats.nodes.len() == 3 && stats.nodes.iter().all(|node| node.up), "{stats:?}");
    assert_eq!(stats.errors_of(ErrorClass::Moved), 0);
    // Nobody vouches for them.
    let error = wait::until("a failure", || CountingStore::at(&url, PLENTY).add_at("a").err());
    assert!(error.class == ErrorClass::Connect && error.detail.contains("certificate"), "{error}");
}

#[test]
fn sentinels_and_the_primary_they_name_are_asked_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let primary = TestRedisLaunch::new().tls(tls.clone()).start();
    let sentinel = TlsSentinel::start(&tls, primary.port());
    let url = format!("redis-sentinel://{}/{PRIMARY_NAME}?tls=true", sentinel.address);
    let store = CountingStore::at(&format!("{url}&ca_file={}", tls.ca.display()), PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
    assert_eq!(store.link.stats().nodes[0].address, primary.address().to_string());
    assert_eq!(primary.cli(&["GET", "a"]), "1");
    // Nobody vouches for the sentinel: whom it names is not asked.
    let error = wait::until("a failure", || CountingStore::at(&url, PLENTY).add("a").err());
    assert!(error.class == ErrorClass::Connect && error.detail.contains("certificate"), "{error}");
    assert!(error.detail.contains(&sentinel.address.to_string()), "{error}");
}

/// One sentinel that speaks TLS only, also to the primary.
struct TlsSentinel {
    address: SocketAddr,
    _process: ChildProcess,
    _folder: TempDir,
}

impl TlsSentinel {
    fn start(tls: &RedisTlsFiles, primary: u16) -> TlsSentinel {
        // A port may be taken between our look and the sentinel's; three in a row are no accident.
        (0..3).find_map(|_| TlsSentinel::try_start(tls, primary)).expect("the sentinel starts")
    }

    fn try_start(tls: &RedisTlsFiles, primary: u16) -> Option<TlsSentinel> {
        let folder = tempfile::tempdir().unwrap();
        let address = testkit::net::free_address();
        let (file, log) = (folder.path().join("sentinel.conf"), folder.path().join("log"));
        let RedisTlsFiles { cert, key, ca } = tls;
        let text = format!(
            "bind 127.0.0.1\nport 0\ntls-port {}\ntls-replication yes\ntls-auth-clients no\n\
             tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\nlogfile {}\n\
             sentinel monitor {PRIMARY_NAME} 127.0.0.1 {primary} 1\n",
            address.port(),
            cert.display(),
            key.display(),
            ca.display(),
            log.display(),
        );
        fs::write(&file, text).unwrap();
        let mut process =
            ChildProcess::start(Command::new("redis-server").arg(&file).arg("--sentinel"));
        wait::until("the sentinel", || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let up = log.contains("Sentinel ID is").then_some(true);
            up.or_else(|| process.ended().map(|_| false))
        })
        .then_some(TlsSentinel { address, _process: process, _folder: folder })
    }
}
