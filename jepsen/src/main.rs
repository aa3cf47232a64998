//! The partition suite of Holdfast. It talks HTTP only and never imports `holdfast`.

fn main() -> std::process::ExitCode {
    eprintln!("holdfast-jepsen: no suite is built yet; see docs/verification.md");
    std::process::ExitCode::from(2)
}
