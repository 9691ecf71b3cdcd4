//! `cargo xtask release`: the program as users get it, and with `--pgo` optimised for measured traffic.
//!
//! Profile-guided optimisation builds three times: programs that count how often each branch is taken, the
//! training that sends them mixed traffic, and the programs built with those counts. The first and the last have
//! folders of their own below the target folder, because other compiler flags would rebuild everything.

use std::path::{Path, PathBuf};

use crate::invocation::Invocation;
use crate::{CommandLineError, target_directory};

/// The options of `release`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReleaseOptions {
    pgo: bool,
    floors: bool,
}

impl ReleaseOptions {
    pub(crate) fn parse(words: &[String]) -> Result<ReleaseOptions, CommandLineError> {
        let mut options = ReleaseOptions::default();
        for word in words {
            match word.as_str() {
                "--pgo" => options.pgo = true,
                "--floors" => options.floors = true,
                other => return Err(format!("There is no option `{other}` of `release`.")),
            }
        }
        Ok(options)
    }
}

/// Builds the program and prints its path. Returns true if that succeeded.
pub(crate) fn run(options: &ReleaseOptions) -> bool {
    let folder = if options.pgo {
        build_with_profile(options)
    } else {
        build(options, "", &[]).then(|| PathBuf::from(target_directory("release")))
    };
    if let Some(folder) = &folder {
        println!("{}", folder.join("tollgate").display());
    }
    folder.is_some()
}

/// Builds, trains and builds again. Returns the folder of the programs.
fn build_with_profile(options: &ReleaseOptions) -> Option<PathBuf> {
    let host = host_triple()?;
    let profdata = profile_merger(&host)?;
    let profiles = absolute(&target_directory("pgo/profiles"));
    let merged = profiles.join("merged.profdata");
    // Profiles of an earlier version of the code would mislead the compiler.
    let _ = std::fs::remove_dir_all(&profiles);
    let programs = |folder: &str| absolute(&target_directory(folder)).join(&host).join("release");

    eprintln!("1 of 4: programs that count their branches");
    let generate = format!("-Cprofile-generate={}", profiles.display());
    build(options, &generate, &["pgo/counting", &host]).then_some(())?;
    eprintln!("2 of 4: training");
    train(options, &programs("pgo/counting")).run().then_some(())?;
    eprintln!("3 of 4: merging the counts");
    merge(&profdata, &profiles, &merged).run().then_some(())?;
    eprintln!("4 of 4: programs optimised for the training");
    let usage = format!("-Cprofile-use={}", merged.display());
    build(options, &usage, &["pgo/optimised", &host]).then(|| programs("pgo/optimised"))
}

/// Builds with these compiler flags. `place` is empty or has the name of a target folder and the host: flags apply
/// to build scripts as well unless a target is named, and then those would be profiled too.
fn build(options: &ReleaseOptions, flags: &str, place: &[&str]) -> bool {
    builds(options, flags, place).iter().all(Invocation::run)
}

/// Tollgate and the floors are built by commands of their own, as for the benchmarks.
fn builds(options: &ReleaseOptions, flags: &str, place: &[&str]) -> Vec<Invocation> {
    let mut lines = vec!["cargo build --release --package tollgate-cli"];
    if options.floors {
        lines.push(
            "cargo build --release --package tollgate-bench --bin bare-hyper --bin bare-resp \
             --bin tonic-echo --bin axum-route",
        );
    }
    let place = |line: Invocation| match place {
        [folder, host] => line
            .with(["--target-dir", &target_directory(folder), "--target", host])
            .env("RUSTFLAGS", flags),
        _ => line,
    };
    lines.into_iter().map(|line| place(Invocation::new(line))).collect()
}

/// The program that sends the traffic; it is not measured, so the profile of the tests will do.
fn train(options: &ReleaseOptions, programs: &Path) -> Invocation {
    let line = "cargo run --profile ci --package tollgate-bench --bin pgo-training --";
    let train = Invocation::new(line).with([programs.display().to_string()]);
    if options.floors { train.with(["--floors"]) } else { train }
}

fn merge(profdata: &Path, profiles: &Path, merged: &Path) -> Invocation {
    let words = ["merge", "--output"].map(str::to_owned);
    let paths = [merged, profiles].map(|path| path.display().to_string());
    Invocation::new(&profdata.display().to_string()).with(words).with(paths)
}

/// Finds `llvm-profdata` in the toolchain; prints how to install it if it is missing.
fn profile_merger(host: &str) -> Option<PathBuf> {
    let sysroot = Invocation::new("rustc --print sysroot").output()?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin");
    let program = folder.join("llvm-profdata");
    if program.exists() {
        return Some(program);
    }
    eprintln!("llvm-profdata is not installed; run: rustup component add llvm-tools");
    None
}

/// The platform that the compiler runs on, such as `x86_64-unknown-linux-gnu`.
fn host_triple() -> Option<String> {
    let version = Invocation::new("rustc --version --verbose").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
}

/// The path seen from anywhere: compilers run in folders of their own.
fn absolute(path: &str) -> PathBuf {
    crate::root().join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ReleaseOptions, CommandLineError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ReleaseOptions::parse(&words)
    }

    #[test]
    fn floors_are_built_the_same_way() {
        let options = parse("--pgo --floors").expect("valid options");
        let lines = builds(&options, "-Cflag", &["pgo/counting", "host"]);
        assert_eq!(lines.len(), 2);
        for line in lines {
            let line = line.to_string();
            assert!(line.starts_with("RUSTFLAGS=-Cflag cargo build --release"), "{line}");
            assert!(line.contains("/pgo/counting --target host"), "{line}");
        }
        let plain = builds(&ReleaseOptions::default(), "", &[]);
        let plain: Vec<String> = plain.iter().map(ToString::to_string).collect();
        assert_eq!(plain, ["cargo build --release --package tollgate-cli"]);
        assert!(parse("--pog").unwrap_err().contains("no option `--pog`"));
    }

    #[test]
    fn the_compiler_names_its_host() {
        let host = host_triple().expect("a compiler");
        assert!(host.split('-').count() >= 3, "{host}");
    }
}
