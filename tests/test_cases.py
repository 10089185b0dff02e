"""What went wrong for people with long prompts, and the tests that hold what is right: no case is lost.

The numbers are those of public reports about other tools, collected outside the repository; each was read, done on this
product, and given a test of its whole kind. The list below says which.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REPORTS = TESTS.parents[1] / "shared" / "cases" / "cases.md"
SECOND = REPORTS.with_name("cases-2.md")
LAST = 72  # of the parts on lengths, checkpoints, encoding and syntax; training and evaluation come behind it

PROMPTS, PIPELINES = "test_cases_prompts.py", "test_cases_pipelines.py"
HELD = {
    # Length, truncation, pairs of prompts
    1: [f"{PROMPTS}::test_a_pipeline_of_77_cuts_and_one_of_248_keeps_all"],
    2: [f"{PROMPTS}::test_nobody_complains_of_a_prompt_that_is_read"],
    3: [f"{PROMPTS}::test_nobody_complains_of_a_prompt_that_is_read"],
    4: [f"{PROMPTS}::test_embeddings_mix_with_a_plain_negative_prompt_and_img2img_reads_as_far"],
    5: ["test_encode_prompt_families.py::test_both_sides_have_one_length_and_give_a_picture"],
    6: [f"{PROMPTS}::test_names_are_those_of_the_call"],
    7: [f"{PROMPTS}::test_embeddings_mix_with_a_plain_negative_prompt_and_img2img_reads_as_far"],
    8: [
        f"{PROMPTS}::test_names_are_those_of_the_call",
        "test_encode_prompt_families.py::test_the_picture_is_that_of_the_prompt_itself",
    ],
    9: ["test_encode_prompt.py::test_both_sides_have_one_length"],
    11: [f"{PROMPTS}::test_the_window_is_the_models_and_chinese_is_counted_before_it_is_drawn"],
    12: [f"{PROMPTS}::test_embeddings_mix_with_a_plain_negative_prompt_and_img2img_reads_as_far"],
    14: ["test_encode_prompt_weights.py::test_a_prompt_without_markup_is_not_changed_and_markup_uses_up_no_tokens"],
    15: [
        "test_prompts.py::test_prompts_that_people_lost_the_end_of_fit_in_248",
        "test_prompts.py::test_lists_are_cut_at_commas_and_long_words_between_characters_or_bytes",
    ],
    16: [f"{PROMPTS}::test_nobody_complains_of_a_prompt_that_is_read"],
    17: [
        f"{PROMPTS}::test_the_window_is_the_models_and_chinese_is_counted_before_it_is_drawn",
        "test_encode_prompt.py::test_windows_are_encoded_by_themselves_and_the_order_of_a_batch_is_kept",
        "test_encode_prompt_weights.py::test_weights_are_those_of_the_web_ui_in_negative_prompts_and_batches_too",
    ],
    18: ["test_token_report.py::test_the_words_of_a_short_prompt_that_is_long_in_tokens"],
    # Checkpoints, conversion, loading
    19: [
        "test_readme.py::test_the_three_lines_of_use_draw_a_picture",
        "test_readme.py::test_a_block_for_real_models_runs_on_tiny_ones",
    ],
    20: [
        "test_checkpoint_convert.py::test_a_config_edited_to_be_longer",
        "test_encoder_faults.py::test_a_faulty_folder_is_told_in_one_sentence",
        "test_base_pipeline.py::test_a_faulty_base_is_told_in_one_sentence",
    ],
    21: [
        "test_checkpoint_layouts.py::test_long_clip",
        "test_checkpoint_layouts.py::test_the_first_table_alone_is_another_encoder",
        "test_checkpoint_golden.py::test_dropping_the_second_table_shows_on_long_texts_only",
    ],
    22: [
        "test_checkpoint_convert.py::test_a_short_file_where_a_long_one_is_needed",
        "test_pipeline.py::test_what_does_not_fit_a_pipeline_is_told",
    ],
    23: ["test_checkpoint_layouts.py::test_text_only_and_whole_clip_files"],
    25: [
        "test_checkpoint_reading.py::test_what_is_no_checkpoint",
        "test_checkpoint_reading.py::test_half_a_file",
        "test_checkpoint_layouts.py::test_torchscript_archive",
    ],
    26: ["test_checkpoint_reading.py::test_a_training_checkpoint_is_unwrapped"],
    27: [
        "test_checkpoint_convert.py::test_a_whole_clip_model",
        "test_checkpoint_convert.py::test_the_folder_is_an_encoder_for_everybody",
        "test_checkpoint_layouts.py::test_a_part_of_a_model_is_refused",
    ],
    28: ["test_checkpoint_layouts.py::test_text_only_and_whole_clip_files"],
    31: [
        "test_checkpoint_layouts.py::test_transformers_folder_and_both_key_layouts",
        "test_encoder.py::test_flat_keys_load_too_and_a_stretched_encoder_is_a_pair",
        "test_encoder.py::test_stock_transformers_reads_the_folder_version_4_too",
    ],
    32: ["test_pipeline_saved.py::test_a_family_reads_248_tokens_without_this_project"],
    33: ["test_encoder_slots.py::test_an_encoder_and_a_tokenizer_that_do_not_belong_together_are_told"],
    34: [
        "test_encoder_faults.py::test_a_faulty_folder_is_told_in_one_sentence",
        "test_encoder_slots.py::test_an_encoder_and_a_tokenizer_that_do_not_belong_together_are_told",
    ],
    35: [
        "test_encoder_slots.py::test_what_does_not_fit_is_told_in_one_sentence",
        "test_base_pipeline.py::test_a_base_without_an_encoder_named_and_a_width_that_does_not_fit_are_told",
    ],
    36: [
        "test_encoder_slots.py::test_stretched_is_the_bases_own_with_its_first_twenty_positions",
        "test_pipeline_families.py::test_the_result_says_what_is_in_its_slots",
        "test_encode_prompt_families.py::test_one_window_equals_the_pipelines_own_encoding",
    ],
    37: [
        "test_pipeline_families.py::test_a_difference_in_word_150_alone_is_in_every_branch",
        f"{PIPELINES}::test_sdxl_with_controlnet_draws_the_150th_word",
    ],
    39: [
        "test_encoder.py::test_save_and_load_keep_every_value_and_half_precision",
        "test_checkpoint_layouts.py::test_open_clip",
    ],
    40: [f"{PIPELINES}::test_nothing_needs_setuptools_or_openais_package"],
    # Encoding
    41: ["test_pipeline.py::test_clip_skip_equals_the_computation_by_hand"],
    42: ["test_encode_prompt_families.py::test_clip_skip"],
    44: [
        f"{PIPELINES}::test_the_picture_follows_the_scale_at_once",
        "test_adapters.py::test_a_kohya_lora_is_encoded_at_its_scale_and_left_as_it_was",
    ],
    46: ["test_encode_prompt_weights.py::test_a_tag_for_a_file_is_told"],
    47: [
        "test_encode_prompt.py::test_a_learnt_token_with_three_vectors_is_read",
        "test_adapters.py::test_a_learnt_token_of_both_encoders_is_never_cut",
    ],
    50: [
        "test_encoder.py::test_old_end_token_ids_become_the_real_ones_and_pooling_is_there_for_ids_above_it",
        "test_adapters.py::test_a_learnt_token_of_both_encoders_is_never_cut",
    ],
    51: [
        "test_adapters.py::test_a_learnt_token_of_one_encoder_is_told",
        "test_adapters.py::test_a_learnt_token_of_both_encoders_is_never_cut",
    ],
    53: ["test_encode_prompt.py::test_windows_are_encoded_by_themselves_and_the_order_of_a_batch_is_kept"],
    54: [
        "test_encode_prompt_running.py::test_offloaded_encoders_are_called_through_their_hooks",
        "test_encode_prompt_running.py::test_offloaded_from_a_gpu",
    ],
    55: [
        f"{PIPELINES}::test_twenty_encodes_leave_memory_flat",
        "test_encode_prompt_running.py::test_a_thousand_encodes_leave_memory_flat",
    ],
    56: [
        "test_encode_prompt_running.py::test_ip_adapter_controlnet_and_animatediff",
        f"{PIPELINES}::test_sdxl_with_an_ip_adapter_reads_two_windows",
    ],
    57: [f"{PIPELINES}::test_twenty_prompts_without_weights_are_the_pipelines_own"],
    # What is typed in a prompt
    58: ["test_markup.py::test_time_is_linear", "test_prompts.py::test_twenty_thousand_tokens_are_quick"],
    59: ["test_markup.py::test_weights"],
    61: [f"{PROMPTS}::test_both_prompts_may_be_empty"],
    62: [
        "test_markup.py::test_break_is_an_upper_case_word_by_itself",
        "test_encode_prompt_weights.py::test_break_begins_a_window",
    ],
    63: ["test_encode_prompt_weights.py::test_break_begins_a_window"],
    64: ["test_markup.py::test_malformed_and_unbalanced_markup_is_text", "test_markup.py::test_escaped_signs_are_text"],
    65: ["test_encode_prompt_weights.py::test_all_is_finite_in_half_precision"],
    67: [
        "test_tokens.py::test_golden_ids",
        "test_checkpoint_golden.py::test_which_texts_have_other_ids_than_the_original_tokenizer",
    ],
    68: [
        f"{PROMPTS}::test_a_typed_end_token_does_not_end_the_prompt",
        "test_tokens.py::test_a_tokenizer_that_spells_special_tokens_out_keeps_to_it_where_it_is_saved",
    ],
    69: [f"{PROMPTS}::test_the_window_is_the_models_and_chinese_is_counted_before_it_is_drawn"],
    72: [
        f"{PIPELINES}::test_two_pipelines_of_one_base_run_at_once",
        "test_app_run.py::test_the_second_waits_is_told_and_draws_the_same",
    ],
}

# The second list: machines, text files, encoders, training, the app. One test of each kind; the others begin with its
# number, "Case 104: ...".
SECOND_LIST = {
    101: "test_train_siglip.py::test_both_recipes_train_are_saved_and_evaluate_the_same",
    102: "test_terminal.py::test_no_encoding_of_the_output_stops_a_command",
    104: "test_text_files.py::test_every_reader_takes_marks_other_encodings_and_line_breaks",
    105: "test_datasets_captions.py::test_rows_of_one_picture_are_one_record_in_every_list_and_once_in_a_batch",
    106: "test_datasets_captions.py::test_a_caption_column_of_shards_is_read_or_named",
    107: "test_datasets_captions.py::test_json_forms_are_told_by_their_keys",
    108: "test_datasets_captions.py::test_nothing_usable_says_why_and_what_is_there",
    109: "test_text_files.py::test_half_a_character_reads_alike_in_training_and_evaluation",
    110: "test_datasets_captions.py::test_what_is_no_text_is_a_fault_of_its_kind",
    111: "test_sentences.py::test_a_text_is_split_where_a_reader_stops",
    112: "test_encoder_fit.py::test_a_whole_vit_h_is_cut_to_what_stable_diffusion_2_reads",
    113: "test_replaced.py::test_a_foreign_encoder_is_told_once_with_the_distance",
    114: "test_prompt_vectors.py::test_all_vectors_are_read_whatever_the_case_and_never_inside_a_word",
    115: "test_cli_guidance.py::test_flux_follows_a_negative_prompt_by_true_guidance",
    116: "test_pipeline.py::test_nothing_stays_behind_that_clip_skip_needs",
    117: "test_encoder_fit.py::test_a_quantised_encoder_is_refused_before_anything_is_loaded_or_drawn",
    118: "test_pipeline_options.py::test_a_modular_pipeline_is_told_in_one_sentence",
    119: "test_cli_names.py::test_compare_with_a_base_takes_what_the_base_has",
    120: "test_checkpoint_layouts.py::test_a_causal_clip_of_the_sigmoid_loss_is_a_clip",
    121: "test_pipeline_options.py::test_a_misspelt_option_is_told_with_the_nearest",
    122: "test_encoder_source.py::test_options_of_the_hub_reach_the_encoder",
    123: "test_weight_files.py::test_a_base_of_any_name_is_read_by_its_content",
    124: "test_types.py::test_what_the_documents_show_passes_a_type_checker",
    125: "test_encode_prompt_texts.py::test_clip_skip_2_of_the_web_ui_is_1_and_a_boolean_is_no_length",
    126: "test_terminal.py::test_a_dash_reads_standard_input",
    127: "test_train_finite.py::test_the_last_good_checkpoint_stays",
    128: "test_train_resume.py::test_what_was_changed_under_the_same_path_is_named",
    129: "test_train_unet_resume.py::test_a_finished_run_is_left_as_it_is",
    130: "test_train_config.py::test_a_list_is_given_in_every_way_that_people_know",
    131: "test_train_watch.py::test_validation_prompts_are_drawn_with_the_encoder_as_it_is",
    132: "test_weight_files.py::test_what_is_not_weights_is_told_alike_by_every_reader",
    133: "test_train_config.py::test_an_engine_that_is_left_out_is_refused",
    134: "test_train_long_runs.py::test_a_small_disk_ends_the_run_with_one_sentence",
    135: "test_losses.py::test_components_of_each_processs_own_images",
    136: "test_app_browser.py::test_blind_votes_of_any_pace_are_kept",
    137: "test_app_strangers.py::test_a_small_job_has_its_turn_among_long_ones_and_those_who_hang_up_are_gone",
    138: "test_app_strangers.py::test_only_this_machines_names_are_answered",
    139: "test_lettering.py::test_a_character_without_a_font_keeps_its_place_and_is_noted_once",
    140: "test_app_strangers.py::test_a_faulty_request_is_one_sentence",
    141: "test_app_keep.py::test_what_is_taken_along_holds_names",
    142: "test_example_prompts.py::test_a_documented_prompt_is_drawn_by_every_shipped_encoder",
}
ELSEWHERE = {103}  # the ranges of versions: a job of its own


@pytest.mark.parametrize("case", HELD | SECOND_LIST)
def test_a_case_is_held_by_tests_that_are_there(case):
    places = HELD[case] if case in HELD else [SECOND_LIST[case]]
    assert places
    for place in places:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def test_every_test_of_the_case_files_belongs_to_a_case_or_stands_without_number():
    """A test that names its cases is listed under each of them."""
    for file in (PROMPTS, PIPELINES):
        for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body:
            first = (ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef) else ""
            named = re.match(r"Cases? ([0-9, and]+)[:;.]", first)
            for case in map(int, re.findall(r"[0-9]+", named[1])) if named else ():
                assert f"{file}::{node.name}" in HELD[case], (case, node.name)


@pytest.mark.skipif(not REPORTS.is_file(), reason="the reports lie outside the repository and are not here")
def test_no_report_is_forgotten():
    found = {int(number) for number in re.findall(r"^(\d+)\. ", REPORTS.read_text(encoding="utf-8"), re.MULTILINE)}
    assert HELD.keys() == {number for number in found if number <= LAST}
    found = {int(number) for number in re.findall(r"^(\d+) [A-C] \|", SECOND.read_text(encoding="utf-8"), re.MULTILINE)}
    assert SECOND_LIST.keys() | ELSEWHERE == found
