//! Runs the machine's own tools (`ip`, `nft`, `mount`, …) and says what they said when they fail.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Runs a tool to its end and returns what it printed.
///
/// # Errors
///
/// When it is missing or fails; with the command and its own words.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    feed(program, arguments, "").await
}

/// The same, with text on its standard input.
///
/// # Errors
///
/// As [`run`].
pub(crate) async fn feed(program: &str, arguments: &[&str], text: &str) -> Result<String, String> {
    let named = || format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("{}: {e}", named()))?;
    let mut stdin = child.stdin.take().expect("it was piped");
    // A tool that does not read its input closes it: that is no failure.
    let _ = stdin.write_all(text.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.map_err(|e| format!("{}: {e}", named()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{}: {} {}", named(), output.status, why.trim()))
}

/// Whether a tool is on this machine.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(str::to_owned);
    path.split(':').map(str::to_owned).chain(usual).any(|dir| {
        std::fs::metadata(std::path::Path::new(&dir).join(program)).is_ok_and(|it| it.is_file())
    })
}
