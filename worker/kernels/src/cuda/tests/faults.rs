//! What the emulator reports as a fault, and how failures of a device reach the host.
