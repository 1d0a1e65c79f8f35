"""What the kubelet does to a driver, and a driver to the kubelet: each reaction, and the test that proves it.

The protocol as Kubernetes 1.34 to 1.37 speak it (``pkg/kubelet/pluginmanager``, ``pkg/kubelet/cm/dra``, the
protos of ``k8s.io/kubelet``, the Go helper ``dynamic-resource-allocation/kubeletplugin``), in our own words.
Numbers are those of the sections that the tests' docstrings name: 1 registration, 2 Prepare and Unprepare,
3 health, 4 what the Go helper does unasked, 10 tests of upstream, 11 traps. ``test_requirements`` fails when
a test that stands here does not exist, when a sentence has neither test nor reason, and when a test of the
contract proves no sentence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sentence:
    """One reaction. ``tests`` are names of this suite, or ``folder/file.py::name`` of another one;
    ``why_none`` is the reason where a driver has nothing to prove."""

    section: str
    says: str
    tests: tuple[str, ...] = ()
    why_none: str = ""


def _proven(section: str, says: str, *tests: str) -> Sentence:
    return Sentence(section, says, tests)


def _not_ours(section: str, says: str, why_none: str) -> Sentence:
    return Sentence(section, says, why_none=why_none)


_STANDIN = "testbed/test_kubelet_standin.py"
_PARTS = "testbed/test_kubelet_standin_parts.py"
_ROOM = "kubelet/test_plugin.py"
_WHOLE = "kubelet/test_whole.py"

REGISTRATION = (
    _proven(
        "1.1",
        "GetInfo names type DRAPlugin, the driver, the endpoint and the services, newest first.",
        "test_get_info_says_type_name_endpoint_and_services_newest_first",
        "test_a_kubelet_meets_the_names_of_the_go_helper",
    ),
    _proven(
        "1.1",
        "An empty endpoint makes the kubelet call the registration socket itself.",
        f"{_PARTS}::test_an_empty_endpoint_is_the_registration_socket_itself",
    ),
    _proven(
        "1.1",
        "Only what the server really serves is advertised; the DRA services answer under longer names.",
        "test_only_what_is_served_is_advertised_and_all_of_it_answers",
        "test_an_advertised_name_is_not_a_service_name",
        "pb/test_generated_code.py::test_the_service_names_in_the_code_are_those_of_the_protos",
    ),
    _proven(
        "1.2",
        "The registration socket is <driver>-reg.sock, the DRA socket dra.sock in the driver's folder.",
        "test_an_instance_that_is_alone_has_the_names_of_old",
        "test_a_registry_elsewhere_is_respected",
    ),
    _proven(
        "1.2",
        "The driver's folder is its own and must exist: we make it, for its owner alone.",
        f"{_WHOLE}::test_the_plugin_folder_is_made_for_its_owner_only",
    ),
    _proven(
        "1.2",
        "A UNIX socket's path has at most 107 bytes, of 63 characters of driver name and a UID as well.",
        "test_a_path_of_107_bytes_binds_and_one_more_is_refused_by_name",
        "test_no_name_is_ever_over_the_bound",
        "test_the_dra_socket_of_an_instance_fits_for_every_driver_name",
    ),
    _proven(
        "1.3",
        "The watcher acts on names that appear and vanish; hidden ones and what is no socket are ignored.",
        "test_no_name_that_does_not_listen_is_ever_visible",
        f"{_PARTS}::test_what_is_no_socket_or_hidden_is_ignored_and_a_dead_socket_disturbs_nobody",
    ),
    _proven(
        "1.3",
        "Subfolders are walked and watched.",
        f"{_PARTS}::test_a_socket_in_a_subfolder_is_registered_also_when_the_folder_comes_later",
        f"{_PARTS}::test_a_socket_in_a_hidden_folder_is_ignored",
    ),
    _proven(
        "1.3",
        "At its start the kubelet walks what is there, so every driver is registered again after a restart.",
        "test_a_kubelet_that_starts_later_finds_the_socket_that_is_there",
        "test_a_restarted_kubelet_registers_the_same_socket_again",
        "test_a_restarted_kubelet_gets_registration_and_slices_again",
    ),
    _proven(
        "1.3",
        "Remove and create of one path is another plugin: deregistered, then registered.",
        "test_a_socket_made_anew_is_another_plugin_and_not_the_same_twice",
        f"{_PARTS}::test_a_socket_put_in_place_of_another_is_a_new_plugin",
    ),
    _proven(
        "1.3",
        "A registry or plugin folder that was removed is made anew by a kubelet or by us, and served.",
        "test_a_registry_folder_that_is_made_anew_is_served_again",
        "test_folders_that_were_made_anew_are_served_again",
    ),
    _proven(
        "1.3",
        "Dial 10 s, GetInfo 1 s, judge, register, NotifyRegistrationStatus(true) 5 s, in this order.",
        "test_the_kubelet_asks_admits_and_says_so_in_this_order",
        "test_a_kubelet_with_the_times_of_the_real_one_registers_us",
        "test_the_dra_socket_answers_before_the_kubelet_can_know_of_it",
    ),
    _proven(
        "1.3",
        "Any failure is told as false with its text, and the whole sequence is tried again, later and later.",
        "test_a_refused_plugin_says_so_stays_and_is_registered_by_a_retry",
        "test_a_registration_that_is_repeated_changes_nothing",
        f"{_PARTS}::test_a_plugin_that_is_refused_hears_why_and_is_tried_again",
    ),
    _proven(
        "1.3",
        "A registration socket that is gone deregisters name and endpoint.",
        "test_a_vanished_registration_socket_is_the_goodbye",
    ),
    _not_ours(
        "1.3",
        "A kubelet up to 1.32 ignores the endpoint of a goodbye, so an old instance takes the new one along.",
        "The API server that we need begins with 1.34.",
    ),
    _proven(
        "1.3",
        "GetInfo is cheap, without effects, and answered within its second whatever else goes on.",
        "test_get_info_answers_within_its_second_under_load",
        "test_get_info_and_empty_requests_are_answered_at_once_while_everything_hangs",
    ),
    _proven(
        "1.4",
        "The first service of the plugin's list that the kubelet knows is called; none known is an error.",
        "test_the_first_service_of_our_list_that_the_kubelet_knows_is_called",
        "test_a_refused_plugin_says_so_stays_and_is_registered_by_a_retry",
    ),
    _proven(
        "1.4",
        "The same endpoint twice is refused as already registered.",
        "test_the_same_endpoint_under_two_names_is_refused_and_hurts_nobody",
    ),
    _proven(
        "1.4",
        "Of several endpoints of a driver the newest connected one is called, else the newest.",
        "test_calls_go_to_the_newest_connected_instance",
    ),
    _proven(
        "1.4",
        "The kubelet connects at once, and again whenever the connection ends.",
        "test_the_kubelet_reconnects_when_our_plugin_folder_was_made_anew",
        "test_the_kubelet_does_not_hang_up_on_a_driver_that_is_slow_to_take_its_connection",
        "test_sockets_of_a_killed_driver_are_replaced_by_the_next",
    ),
    _proven(
        "1.4",
        "At its start the kubelet deletes the node's slices, and those of a driver that is away for 30 s.",
        "test_a_restarted_kubelet_gets_registration_and_slices_again",
        "test_slices_are_wiped_only_after_a_while_without_any_connection",
        "test_slices_that_somebody_deleted_come_back",
        f"{_STANDIN}::test_a_restarted_kubelet_wipes_the_slices_of_its_own_node_only",
    ),
    _proven(
        "1.5",
        "1.34 to 1.36 speak v1 and health v1alpha1, advertised or not; 1.37 v1, if advertised.",
        "test_each_generation_of_kubelets_prepares_and_watches_health",
        "test_what_the_kubelet_called_is_remembered",
    ),
)

PREPARE = (
    _proven(
        "2.1",
        "A claim is namespace 1, uid 2, name 3; answers are keyed by UID.",
        "test_the_uid_is_the_second_field_and_the_name_the_third",
        "test_a_claim_without_a_uid_is_refused_before_any_work",
    ),
    _proven(
        "2.1",
        "v1beta1 is v1 without the share.",
        "test_both_versions_answer_the_same_but_for_the_share",
        "test_preparing_again_gives_the_same_answer_in_both_versions",
    ),
    _proven(
        "2.2",
        "request_names are main requests; empty means every container of the claim.",
        "test_an_answer_names_the_main_request_the_allocated_device_and_resolvable_cdi_names",
        "test_no_request_names_and_no_cdi_names_are_allowed",
        f"{_PARTS}::test_a_container_gets_the_devices_of_its_requests_each_once",
    ),
    _proven(
        "2.2",
        "Pool and device are copied from the allocation, one entry for each allocated device.",
        "test_an_answer_names_the_main_request_the_allocated_device_and_resolvable_cdi_names",
        "test_every_device_of_a_claim_is_answered_once_with_cdi_names_of_its_own",
    ),
    _proven(
        "2.2",
        "CDI names are fully qualified, of this claim, each once, and resolvable before the answer.",
        "test_an_answer_names_the_main_request_the_allocated_device_and_resolvable_cdi_names",
        "test_every_device_of_a_claim_is_answered_once_with_cdi_names_of_its_own",
    ),
    _proven(
        "2.2",
        "share_id repeats the allocation's, and is absent otherwise.",
        "test_a_share_id_is_present_exactly_when_the_allocation_has_one",
        "test_an_answer_names_the_main_request_the_allocated_device_and_resolvable_cdi_names",
    ),
    _proven(
        "2.2",
        "One device twice is right only with two shares.",
        "test_one_device_twice_is_two_entries_with_two_shares",
        "driver/test_planner.py::test_a_device_twice_in_a_claim_must_be_two_shares",
    ),
    _proven(
        "2.3",
        "Before any call every claim is allocated, reserved and owned, and every driver registered.",
        f"{_STANDIN}::test_a_claim_is_not_prepared_before_it_is_allocated_and_reserved_for_the_pod",
        f"{_STANDIN}::test_a_template_claim_must_be_owned_by_its_pod",
        f"{_STANDIN}::test_a_pod_waits_for_a_driver_that_is_not_registered",
    ),
    _proven(
        "2.3",
        "One call per driver and pod, with 45 s for all of its claims.",
        f"{_STANDIN}::test_one_call_per_driver_carries_all_claims_of_the_pod",
        "test_a_call_is_answered_before_the_kubelets_patience_ends",
        "test_what_prepare_waits_for_ends_before_the_answer_and_that_before_the_kubelet",
        "test_a_call_whose_deadline_passed_before_its_turn_is_never_begun",
    ),
    _proven(
        "2.3",
        "Every claim of the request needs an entry, and no other may have one.",
        "test_every_claim_of_a_batch_gets_an_entry_and_no_other",
        f"{_ROOM}::test_a_claim_that_the_handler_forgot_still_gets_an_entry_that_names_the_bug",
        f"{_STANDIN}::test_a_bad_answer_fails_the_pod_which_is_tried_again",
    ),
    _proven(
        "2.3",
        "An error of a claim is its own; a gRPC error would be that of all.",
        "test_one_bad_claim_does_not_fail_the_batch",
        "test_one_bad_claim_does_not_fail_the_others_of_its_call",
        "test_an_error_of_the_whole_call_is_told_for_each_claim",
    ),
    _proven(
        "2.3",
        "After an error all claims of the call may come again, those that succeeded as well.",
        "test_after_an_error_all_claims_are_prepared_again_with_the_same_answer",
    ),
    _proven(
        "2.3",
        "A claim that several pods share is prepared once, and later pods are not told of.",
        f"{_STANDIN}::test_a_shared_claim_is_prepared_once_and_unprepared_after_its_last_pod",
        "whole_driver/test_whole_driver.py::test_a_second_pod_that_shares_a_claim_does_not_start_bare_and_gets_its_turn",
    ),
    _proven(
        "2.3",
        "A restarted kubelet prepares the claims of running pods again, which must notice nothing.",
        "test_a_restarted_kubelet_prepares_a_running_pod_again_and_nothing_is_disturbed",
        "test_a_prepared_claim_is_answered_without_the_api_server",
        f"{_STANDIN}::test_a_restarted_kubelet_prepares_again_and_disturbs_no_running_pod",
    ),
    _proven(
        "2.3",
        "A claim of an old name and another UID waits until the old one is unprepared.",
        f"{_STANDIN}::test_a_new_claim_of_an_old_name_waits_until_the_old_one_is_unprepared",
        "test_a_device_is_free_for_the_next_claim_once_it_was_given_back",
    ),
    _proven(
        "2.3",
        "Prepare twice is the same result.",
        "test_preparing_again_gives_the_same_answer_in_both_versions",
    ),
    _proven(
        "2.3",
        "Prepare may be cut anywhere, by time or by a kill, and is repeated.",
        "test_a_kill_between_the_commit_and_the_answer_is_repaired_by_the_repetition",
        "test_a_call_that_the_kubelet_cut_is_finished_and_found_by_its_repetition",
        "test_a_call_that_the_kubelet_cancels_goes_on_and_its_repetition_gets_the_result",
    ),
    _proven(
        "2.3",
        "After a reboot stored state outlives that of the kernel.",
        "driver/test_prepare.py::test_a_record_of_an_earlier_boot_is_planned_anew",
    ),
    _proven(
        "2.5",
        "Results and configs of other drivers are not ours.",
        "test_results_of_other_drivers_are_ignored",
        "claims/test_select.py::test_configs_of_other_drivers_do_not_apply",
    ),
    _proven(
        "2.5",
        "A device that another claim holds is refused, whatever the scheduler thought.",
        "test_a_device_that_another_claim_holds_is_refused_until_it_is_free",
    ),
    _proven(
        "2.5",
        "Admin access is granted beside the device's user, and takes nothing away.",
        "test_admin_access_takes_nothing_from_the_devices_user",
    ),
    _proven(
        "2.5",
        "A result that names a device which is not there any more is an error with a name.",
        "test_one_bad_claim_does_not_fail_the_others_of_its_call",
        "driver/test_planner.py::test_a_device_that_went_away_after_its_allocation_is_not_there",
    ),
    _proven(
        "2.6",
        "Where every result says skipNodeOperations the kubelet does not call: a node driver never says so.",
        "test_slices_ask_for_prepare_and_unprepare",
    ),
)

UNPREPARE = (
    _proven(
        "2.4",
        "Called after the last pod of the node, and until it succeeds; the pod is Terminating meanwhile.",
        f"{_STANDIN}::test_a_pod_stays_terminating_until_unprepare_succeeds",
        "test_an_error_stays_with_its_claim_and_the_call_is_repeated_until_success",
        "test_an_unprepare_that_failed_half_way_is_ended_by_its_repetition",
    ),
    _proven(
        "2.4",
        "Where the driver is absent, pods hang until it is back.",
        "test_a_pod_stays_terminating_until_its_driver_is_back",
        "test_a_driver_that_drains_refuses_prepare_and_still_unprepares",
    ),
    _proven(
        "2.4",
        "Pods that vanished while the kubelet was down are unprepared, too.",
        "test_a_pod_deleted_by_force_while_the_kubelet_was_down_is_cleaned_up",
    ),
    _proven(
        "2.4",
        "The claim object may be gone, so nothing is read from the API server for a decision.",
        "test_unprepare_needs_no_claim_object",
        "test_unprepare_asks_the_api_server_nothing",
    ),
    _proven(
        "2.4",
        "An unknown UID is success.",
        "test_every_claim_gets_an_entry_an_unknown_one_an_empty_one",
        "test_unprepare_of_the_unknown_succeeds_in_both_versions",
    ),
    _proven(
        "2.4",
        "Every UID of the request needs its entry, and the error of one is its own.",
        "test_every_claim_gets_an_entry_an_unknown_one_an_empty_one",
        "test_one_claim_that_cannot_be_given_back_does_not_keep_the_others",
    ),
    _proven(
        "2.4",
        "It may run beside Prepare of other claims.",
        "test_unprepare_waits_for_a_prepare_of_the_same_claim_alone",
        "test_claims_of_other_pods_do_not_wait_for_one_that_hangs",
    ),
    _proven(
        "2.4",
        "Visible effects go first, then the CDI spec, then what is stored.",
        "test_unprepare_removes_the_cdi_file_and_the_record_and_may_be_repeated",
        "test_an_unprepare_that_failed_half_way_is_ended_by_its_repetition",
    ),
    _proven(
        "2.4",
        "Its patience is that of Prepare.",
        "test_an_unprepare_that_hangs_is_answered_in_time_too",
    ),
)

HEALTH = (
    _proven(
        "3.1",
        "v1 and v1alpha1 are the same on the wire.",
        "test_both_versions_are_the_same_on_the_wire",
    ),
    _proven(
        "3.1",
        "A message has at most 1024 characters, else 1021 and three dots.",
        "test_a_long_message_is_cut_as_the_kubelet_would_cut_it",
    ),
    _proven(
        "3.2",
        "The kubelet opens the stream after registration.",
        "test_what_the_kubelet_believes_follows_the_stream",
        "test_each_generation_of_kubelets_prepares_and_watches_health",
    ),
    _proven(
        "3.2",
        "Responses are merged: an absent device keeps its state until its lease ends, then it is Unknown.",
        "test_a_device_that_is_absent_from_a_response_keeps_its_state_until_its_lease",
        "test_a_lease_that_is_not_renewed_ends_on_the_kubelets_side",
        f"{_STANDIN}::test_health_that_is_not_repeated_in_time_becomes_unknown",
    ),
    _proven(
        "3.2",
        "A lease of zero or less is 30 s from the kubelet's own time of arrival.",
        f"{_PARTS}::test_a_lease_that_the_plugin_does_not_give_is_the_kubelets_own",
    ),
    _proven(
        "3.2",
        "So everything is sent at once to a subscriber, and again at a steady pace.",
        "test_a_subscriber_gets_a_full_snapshot_at_once",
        "test_everything_is_sent_again_well_within_its_lease",
        "test_the_health_stream_has_every_published_device_at_once",
    ),
    _proven(
        "3.2",
        "The end of a stream clears what the kubelet believes; it tries again after 5 s.",
        "test_an_ended_stream_clears_the_kubelets_view_and_is_opened_again",
        "test_a_dra_socket_that_is_made_anew_does_not_silence_an_open_stream",
    ),
    _proven(
        "3.2",
        "UNIMPLEMENTED ends the attempts of 1.37, not those of older kubelets.",
        "test_without_a_source_of_health_the_stream_is_unimplemented_and_not_asked_for",
        f"{_PARTS}::test_an_old_kubelet_asks_for_health_again_and_again",
    ),
    _proven(
        "3.2",
        "It is shown in the pod's status under the first CDI name, else driver, pool and device.",
        f"{_STANDIN}::test_the_health_stream_shows_in_the_status_of_the_container",
        "test_what_the_kubelet_believes_follows_the_stream",
    ),
    _not_ours(
        "3.2",
        "The kubelet neither evicts nor taints for it.",
        "Nothing of the driver is called; taints are published in slices.",
    ),
    _proven(
        "3.2",
        "Each registered instance is watched; a slow reader holds up nobody.",
        "test_each_registered_instance_is_watched",
        "test_a_subscriber_that_does_not_read_holds_up_nobody_and_gathers_nothing",
        "test_stop_ends_the_streams_so_that_the_kubelet_knows_at_once",
    ),
)

HELPER = (
    _proven(
        "4.1",
        "Options are judged before anything is touched.",
        "test_a_driver_without_a_name_does_not_start",
        "test_a_registry_that_is_not_there_is_the_operators_error",
    ),
    _proven(
        "4.1",
        "The DRA server is there before the registration server.",
        "test_the_dra_socket_answers_before_the_kubelet_can_know_of_it",
    ),
    _proven(
        "4.1",
        "Registration does not wait for slices, nor slices for registration.",
        "test_registration_does_not_wait_for_slices_nor_slices_for_registration",
    ),
    _proven(
        "4.1",
        "At stop both sockets go, registration first; slices stay.",
        "test_registration_goes_before_the_calls_in_flight_and_these_before_the_dra_socket",
        "test_stop_removes_both_sockets_keeps_the_slices_and_ends_well",
        "test_a_socket_appears_when_it_listens_and_is_gone_after_stop",
    ),
    _proven(
        "4.1",
        "A stale file at the path is replaced.",
        "test_a_dead_socket_of_a_killed_driver_is_replaced",
        "test_sockets_of_a_killed_driver_are_replaced_by_the_next",
    ),
    _proven(
        "4.1",
        "gRPC's defaults hold: 4 MiB for a message, UNIMPLEMENTED for what is not there.",
        "test_an_answer_of_many_claims_fits_what_a_client_receives",
        "test_an_unknown_method_is_unimplemented",
    ),
    _proven(
        "4.2",
        "Names of two instances: the full UID, else a hash, else the shortest form; stable, never the same.",
        "test_a_registration_socket_has_its_plain_name_while_that_fits",
        "test_a_long_driver_name_gets_a_hash_in_place_of_the_uid",
        "test_a_very_long_driver_name_gets_the_shortest_form",
        "test_names_are_stable",
        "test_different_instances_never_share_a_name",
    ),
    _proven(
        "4.2",
        "Each instance removes only its own sockets.",
        "test_an_instance_removes_only_its_own_sockets",
        "test_our_stop_leaves_what_another_put_in_our_place",
    ),
    _proven(
        "4.2",
        "What one instance prepared another may unprepare.",
        "test_what_was_prepared_by_one_process_is_unprepared_by_the_next",
    ),
    _not_ours(
        "4.2",
        "Calls are serialised across processes by a lock file of the plugin's folder.",
        "We lock by claim and device instead, across processes as well; the locks have tests of their own.",
    ),
    _proven(
        "4.2",
        "Both instances are registered and called during an update.",
        "test_calls_go_to_the_newest_connected_instance",
        "test_each_registered_instance_is_watched",
    ),
    _proven(
        "4.3",
        "A claim is fetched live; not found, replaced and not allocated are errors, before any lock.",
        "test_one_bad_claim_does_not_fail_the_others_of_its_call",
        "test_a_claim_that_was_replaced_is_refused",
        "test_a_claim_that_is_not_allocated_is_refused",
    ),
    _proven(
        "4.3",
        "An error that the driver raises is told; ours is told for each claim.",
        "test_an_error_of_the_whole_call_is_told_for_each_claim",
    ),
    _proven(
        "4.3",
        "Unprepare fetches nothing.",
        "test_unprepare_asks_the_api_server_nothing",
    ),
    _proven(
        "4.4",
        "What NotifyRegistrationStatus says is remembered, and answered with an error if it is a refusal.",
        "test_the_answer_to_a_refusal_is_an_error_with_the_kubelets_words",
        "test_a_refused_registration_shows_in_readyz_until_it_succeeds",
    ),
    _proven(
        "4.4",
        "A gRPC server that cannot serve ends the Go helper's process; ours serves again.",
        "test_serving_goes_on_when_the_folder_of_the_plugin_is_made_anew_again_and_again",
    ),
    _proven(
        "4.4",
        "Publishing failures are recoverable.",
        "test_an_api_server_that_breaks_off_is_no_end_of_the_driver",
    ),
    _proven(
        "4.4",
        "An exception in a servicer is logged with its traceback and told as an error of that call.",
        "test_an_exception_in_the_driver_is_told_and_logged_with_its_traceback",
    ),
    _proven(
        "4.5",
        "Slices are owned by the Node object; one with a new UID gets them again.",
        "cluster/test_slices.py::test_slices_of_a_replaced_node_object_get_the_new_owner",
        "cluster/test_slices.py::test_a_node_object_that_comes_late_is_waited_for",
    ),
    _proven(
        "9.3",
        "A liveness probe calls GetInfo, and Prepare without claims: answered at once, past every lock.",
        "test_an_empty_request_is_answered_at_once_while_prepares_hang",
        "test_get_info_and_empty_requests_are_answered_at_once_while_everything_hangs",
    ),
)

UPSTREAM = (
    _proven(
        "10",
        "TestEndpointLifecycle, TestEndpointListener",
        "test_a_socket_appears_when_it_listens_and_is_gone_after_stop",
    ),
    _proven(
        "10",
        "TestRollingUpdateRegistrarSocketFile: seven cases",
        "test_a_registration_socket_has_its_plain_name_while_that_fits",
        "test_a_long_driver_name_gets_a_hash_in_place_of_the_uid",
        "test_a_very_long_driver_name_gets_the_shortest_form",
        "test_no_name_is_ever_over_the_bound",
        "test_a_registry_elsewhere_is_respected",
        "test_names_are_stable",
        "test_different_instances_never_share_a_name",
    ),
    _proven(
        "10",
        "TestStartWithoutHealth",
        "test_a_driver_starts_with_and_without_health",
    ),
    _not_ours("10", "TestStartWithoutDRAAPI", "Both versions are always served; there is no option."),
    _proven(
        "10",
        "TestRollingUpdatePluginSocketPathLength, TestPluginSocketAutomaticNaming",
        "test_the_dra_socket_of_an_instance_fits_for_every_driver_name",
        "test_an_instance_that_is_alone_has_the_names_of_old",
    ),
    _proven(
        "10",
        "TestHealthServerBridge, NotSupported",
        "test_a_subscriber_gets_a_full_snapshot_at_once",
        "test_without_a_source_of_health_the_stream_is_unimplemented_and_not_asked_for",
    ),
    _not_ours(
        "10",
        "TestHealthServerBridge's StaleWatchdog, TestMinHealthCheckTimeout",
        "The helper watches a driver that may forget to send; here the room itself sends at each beat.",
    ),
    _proven(
        "10",
        "TestPickHealthService, TestHealthStreamRequiresAdvertisedService, TestUnimplementedHealthStream...",
        f"{_PARTS}::test_the_health_service_is_the_newest_advertised_one_or_none",
        "test_without_a_source_of_health_the_stream_is_unimplemented_and_not_asked_for",
    ),
    _proven(
        "10",
        "TestAddSameName",
        "test_calls_go_to_the_newest_connected_instance",
        "test_the_same_endpoint_under_two_names_is_refused_and_hurts_nobody",
    ),
    _proven(
        "10",
        "TestServiceNameConstants",
        "test_only_what_is_served_is_advertised_and_all_of_it_answers",
    ),
)

TRAPS = (
    _proven(
        "11.1",
        "gRPC binds over a live socket, and unlinks its successor's.",
        "test_a_second_driver_cannot_steal_the_sockets_of_a_live_one",
        "test_our_stop_leaves_what_another_put_in_our_place",
    ),
    _proven(
        "11.3",
        "Files of one name clash in the descriptor pool.",
        "pb/test_generated_code.py::test_all_messages_live_side_by_side_in_one_descriptor_pool",
    ),
    _proven(
        "11.10",
        "A health stream holds its worker for ever, and GetInfo must not wait for one.",
        "test_streams_take_no_worker_from_prepare",
        "test_get_info_answers_within_its_second_under_load",
    ),
    _proven(
        "11.12",
        "45 s are for the whole batch, and late completion is harmless.",
        "test_a_call_is_answered_before_the_kubelets_patience_ends",
        "test_a_call_that_the_kubelet_cut_is_finished_and_found_by_its_repetition",
    ),
    _proven(
        "11.13",
        "A fork beside a running gRPC server is harmless.",
        f"{_WHOLE}::test_a_fork_beside_a_running_server_prints_nothing",
    ),
    _proven(
        "11.14",
        "SIGTERM leaves no socket behind.",
        "test_stop_removes_both_sockets_keeps_the_slices_and_ends_well",
    ),
)

SENTENCES = (*REGISTRATION, *PREPARE, *UNPREPARE, *HEALTH, *HELPER, *UPSTREAM, *TRAPS)
