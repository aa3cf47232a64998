//! Tells the build its commit, so that `holdfast --version` can.
//!
//! `SOURCE_COMMIT` in the environment goes before git, for whoever builds from an archive. Where
//! neither knows it, it is empty. Only release builds ask git: others would be built again after
//! each commit. It depends on nothing but the commit, so the same commit makes the same build.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_COMMIT");
    let told = std::env::var("SOURCE_COMMIT").ok();
    let told = told.filter(|commit| commit.bytes().all(|byte| byte.is_ascii_graphic()));
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = told.or_else(|| if is_release { of_git() } else { None });
    println!("cargo::rustc-env=SOURCE_COMMIT={}", commit.unwrap_or_default());
}

/// The commit of this directory, if git is there and the repository is this one, not one around it.
fn of_git() -> Option<String> {
    let here = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let top = git(&here, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&here).canonicalize().ok()? {
        return None;
    }
    let commit = git(&here, &["rev-parse", "--short=12", "HEAD"])?;
    // HEAD names a branch or a commit; a branch stands in a file of its own, or with all others,
    // and moves from the one into the other. The log of HEAD tells of each.
    let branch = git(&here, &["symbolic-ref", "--quiet", "HEAD"]);
    let watched = ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref());
    for name in watched {
        let path = git(&here, &["rev-parse", "--git-path", name])?;
        // One that does not exist would count as changed, always.
        if Path::new(&here).join(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Some(commit)
}

fn git(here: &str, arguments: &[&str]) -> Option<String> {
    let told = Command::new("git").arg("-C").arg(here).args(arguments).output().ok()?;
    let text = String::from_utf8(told.stdout).ok()?;
    told.status.success().then(|| text.trim().to_owned())
}
