# Every command that CI runs, and the ones that a day's work needs. `just` alone lists them.

_default:
    @just --list --unsorted

# The registry, the gateway, a local worker and a small model, on http://127.0.0.1:5000
[group('run')]
demo:
    cargo run --release -- serve --demo

# Everything that CI runs
[group('check')]
ci:
    .ci/run

# Formatting, lints and documentation, without tests
[group('check')]
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Rewrites the code as rustfmt likes it
[group('check')]
fmt:
    cargo fmt --all

# All tests, or the parts named: unit e2e clients replicas faults conformance kill soak memory perplexity
[group('test')]
test *parts:
    tests/run {{ parts }}

# The long form: 200 kills, a blob of 4 GiB
[group('test')]
test-long *parts:
    tests/run --long {{ parts }}

# One end-to-end test by a part of its name, against the release build
[group('test')]
e2e name:
    cargo build --release
    cargo test -p lode-tests --test e2e -- {{ name }}
