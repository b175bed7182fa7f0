#!/bin/sh
# Starts a night of $entry_id, from cron, a timer of systemd, or by hand. Written by `bamboo cron add`; docs/cron.md.
# It relies on nothing of the environment that it is started in: all that the job gets is named here and in entry.json.
cd / || exit 1
export PATH=/usr/local/bin:/usr/bin:/bin
python=$python
if ! env -i "$$python" -c 'import bamboo_cli' > /dev/null 2>&1; then
    BAMBOO_CRON_SUMMARY="$entry_id: FAILED: there is no Bamboo any more for $$python"
    BAMBOO_CRON_ID=$entry_id BAMBOO_CRON_STATE=failed BAMBOO_CRON_EXIT_CODE=127 BAMBOO_CRON_LOG=$log
    export BAMBOO_CRON_SUMMARY BAMBOO_CRON_ID BAMBOO_CRON_STATE BAMBOO_CRON_EXIT_CODE BAMBOO_CRON_LOG
    echo "$$BAMBOO_CRON_SUMMARY"
    echo "It was moved or removed. Install it there again, or add the job anew with the Bamboo of today."
    $notify
    exit 127
fi
exec env -i $environment "$$python" -m bamboo_cli.main cron night $entry_id "$$@"
