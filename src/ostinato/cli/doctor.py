"""`ostinato doctor`: what this machine is and can do, and what of Ostinato is on it."""

from __future__ import annotations

from dataclasses import asdict

from ostinato.cli import terminal
from ostinato.cli.flags import Json, Threads


def doctor(threads: Threads = None, json: Json = False) -> None:
    """Show processor, instructions, threads, measured limits, kernel cache and models."""
    import ostinato
    from ostinato import config

    bars = terminal.Bars()
    try:
        machine = ostinato.measure_machine(threads, report=bars.compiled)
    finally:
        bars.finish()
    kernels = ostinato.kernel_cache()
    models = [model for model in ostinato.known_models() if model.path is not None]
    if json:
        terminal.show_json(
            {
                "version": ostinato.__version__,
                **asdict(machine),
                "kernel_cache": asdict(kernels),
                "models": [asdict(model) for model in models],
            }
        )
        return
    listed = [f"{model.name} ({model.size_bytes / 1e6:.0f} MB)" for model in models]
    rows = {
        "version": ostinato.__version__,
        "processor": machine.processor,
        "instructions": machine.simd,
        "threads": str(machine.threads),
        "memory read": f"{machine.read_gbps:.1f} GB/s",
        "int8 products": f"{machine.int8_gops:.0f} GOP/s",
        "kernel cache": f"{kernels.count} kernels, {kernels.size_bytes / 1e6:.1f} MB, in {kernels.folder}",
        "home": str(config.home()),
        "models": ", ".join(listed) or "none; 'ostinato models pull smollm2' fetches one",
    }
    for name, value in rows.items():
        terminal.show(f"{name:14} {value}\n")
