"""What the host gets wrong, or has not followed in torch and numpy, mended one thing a file.

Each file says what it mends, for which versions, and how to see whether it is still needed.
"""

from fairseq_plugins.host import (
    accumulation,
    amp,
    atomic_copy,
    batch_by_size,
    best_checkpoint,
    bf16,
    broadcast,
    checkpoint_classes,
    checkpoint_fit,
    checkpoint_flags,
    crash_file,
    damaged_binaries,
    divergence,
    ema,
    exact_resume,
    filtered_sentences,
    finished_training,
    flag_values,
    generation,
    heartbeat,
    length_buckets,
    master_weights,
    missing_checkpoint,
    missing_pairs,
    numpy_compat,
    one_line_errors,
    out_of_memory,
    path_lists,
    replace_unk,
    resumed_clock,
    resumed_epoch,
    resumed_validation,
    save_dir_lock,
    sparse_gradients,
    translation_direction,
    unread_log,
    unreadable_checkpoints,
    unreadable_dictionaries,
)


def mend_host() -> None:
    """Apply all mends, each once however often this is called."""
    checkpoint_classes.mend()
    checkpoint_flags.mend()
    unreadable_checkpoints.mend()
    translation_direction.mend()  # within that of checkpoint_fit, which takes models one by one
    checkpoint_fit.mend()
    best_checkpoint.mend()
    missing_checkpoint.mend()
    unreadable_dictionaries.mend()
    damaged_binaries.mend()
    missing_pairs.mend()
    path_lists.mend()
    broadcast.mend()
    accumulation.mend()
    out_of_memory.mend()
    batch_by_size.mend()
    filtered_sentences.mend()
    atomic_copy.mend()
    save_dir_lock.mend()
    unread_log.mend()
    exact_resume.mend()
    resumed_epoch.mend()
    resumed_clock.mend()
    resumed_validation.mend()
    finished_training.mend()
    divergence.mend()
    flag_values.mend()
    heartbeat.mend()
    one_line_errors.mend()
    crash_file.mend()
    bf16.mend()
    ema.mend()
    amp.mend()
    master_weights.mend()
    sparse_gradients.mend()
    numpy_compat.mend()
    length_buckets.mend()
    replace_unk.mend()
    generation.mend()
