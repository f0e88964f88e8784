"""Patches of fairseq, where it is wrong or does not work with current versions of torch and numpy.

The docstring of each ``patch_...`` names the problem, the patch, the versions it was written for, and the test that
shows that it is still needed.
"""

from fairseq_plugins.fairseq_patches import (
    checkpoint_flags,
    checkpoints,
    data,
    distributed,
    errors,
    generation,
    optimizers,
    resume,
    saving,
    translation_direction,
)


def apply_patches() -> None:
    """Apply all patches. Calling it again has no effect."""
    checkpoints.patch_checkpoint_classes()
    checkpoint_flags.patch_checkpoint_flags()
    checkpoints.patch_unreadable_checkpoints()
    translation_direction.patch_translation_direction()
    checkpoints.patch_checkpoint_fit()
    saving.patch_best_checkpoint()
    saving.patch_missing_checkpoint()
    data.patch_unreadable_dictionaries()
    data.patch_damaged_binaries()
    data.patch_missing_pairs()
    data.patch_path_lists()
    checkpoints.patch_broadcast()
    distributed.patch_accumulation()
    distributed.patch_out_of_memory()
    data.patch_batch_by_size()
    data.patch_filtered_sentences()
    saving.patch_atomic_copy()
    saving.patch_save_dir_lock()
    errors.patch_unread_log()
    resume.patch_exact_resume()
    resume.patch_resumed_epoch()
    resume.patch_resumed_clock()
    resume.patch_resumed_validation()
    resume.patch_finished_training()
    errors.patch_divergence()
    errors.patch_flag_values()
    distributed.patch_heartbeat()
    errors.patch_one_line_errors()
    saving.patch_crash_file()
    optimizers.patch_bf16()
    optimizers.patch_ema()
    optimizers.patch_amp()
    optimizers.patch_master_weights()
    optimizers.patch_sparse_gradients()
    data.patch_numpy_compat()
    data.patch_length_buckets()
    generation.patch_replace_unk()
    generation.patch_generation()
