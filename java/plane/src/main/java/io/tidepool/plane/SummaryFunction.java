package io.tidepool.plane;

import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Sums by cluster, rack and job, once a second, of the last values of nodes that were heard from in
 * the last ten seconds. Nothing of it is in checkpoints: after a restart the sums are whole again
 * once each node has spoken.
 */
public final class SummaryFunction extends KeyedProcessFunction<String, Report, Summary> {

    /** Time between two summaries. */
    static final long PERIOD_MS = 1000;
    /** A node that is silent for so long is not summed up. */
    static final long SILENT_MS = 10_000;
    /** Most racks and jobs with a summary of their own, with the clusters. */
    static final int GROUPS = 2000;

    private static final long serialVersionUID = 1;

    /** Run of the job, as the last report has it. */
    private transient String plane;
    /** Counts that belong to no node. */
    private transient Report unnamed;
    private transient Map<String, Seen> nodes;
    private transient long lastMs;

    /** The last report of a node. */
    private static final class Seen {
        private Report last;
        private long heardMs;
    }

    @Override
    public void open(OpenContext context) {
        nodes = new HashMap<>();
        unnamed = new Report();
        lastMs = -1;
    }

    @Override
    public void processElement(Report report, Context context, Collector<Summary> out) {
        long nowMs = context.timerService().currentProcessingTime();
        if (lastMs < 0) {
            lastMs = nowMs;
            register(nowMs, context);
        }
        plane = report.plane;
        if (report.node.isEmpty()) {
            unnamed.counts.add(report.counts);
            return;
        }
        Seen seen = nodes.computeIfAbsent(report.cluster + '\n' + report.node, name -> new Seen());
        seen.heardMs = nowMs;
        Report before = seen.last;
        if (before == null) {
            seen.last = report;
            return;
        }
        Report newest = report.taken ? report : before;
        newest.ceilingBytes = report.ceilingBytes == Reading.UNKNOWN
                ? before.ceilingBytes : report.ceilingBytes;
        newest.lagMs = Math.max(before.lagMs, report.lagMs);
        Counts sum = newest == report ? before.counts : report.counts;
        newest.counts.add(sum);
        seen.last = newest;
    }

    private void register(long nowMs, Context context) {
        long nextMs = (nowMs / PERIOD_MS + 1) * PERIOD_MS;
        context.timerService().registerProcessingTimeTimer(nextMs);
    }

    @Override
    public void onTimer(long timeMs, OnTimerContext context, Collector<Summary> out) {
        long nowMs = context.timerService().currentProcessingTime();
        register(nowMs, context);
        if (lastMs < 0) {
            // A timer of before a restore: nothing was heard yet.
            lastMs = nowMs;
        }
        nodes.values().removeIf(seen -> nowMs - seen.heardMs >= SILENT_MS);
        long spanMs = nowMs - lastMs;
        lastMs = nowMs;
        Map<Group, Sums> sums = new TreeMap<>();
        sums.put(new Group("plane", "", ""), new Sums());
        sums.values().forEach(all -> all.add(unnamed, 0));
        for (Seen seen : nodes.values()) {
            add(sums, seen.last);
        }
        sums.forEach((group, sum) -> {
            String text = sum.json(group.head(), plane, nowMs, spanMs);
            out.collect(new Summary(group.key(), text));
        });
        unnamed = new Report();
        nodes.values().forEach(seen -> seen.last.forgetCounts());
    }

    private static void add(Map<Group, Sums> sums, Report node) {
        add(sums, new Group("plane", "", ""), node, 0);
        add(sums, new Group("cluster", node.cluster, ""), node, 0);
        if (!node.rack.isEmpty()) {
            add(sums, new Group("rack", node.cluster, node.rack), node, 0);
        }
        Map<String, Long> jobs = new TreeMap<>();
        for (JobUse job : node.jobs) {
            jobs.merge(job.name, job.bytes, Law::add);
        }
        jobs.forEach((job, bytes) -> add(sums, new Group("job", node.cluster, job), node, bytes));
    }

    private static void add(Map<Group, Sums> sums, Group group, Report node, long ownBytes) {
        Sums sum = sums.get(group);
        if (sum == null) {
            if (!group.name.isEmpty() && sums.size() >= GROUPS) {
                return;
            }
            sum = new Sums();
            sums.put(group, sum);
        }
        sum.add(node, ownBytes);
    }

    /** What is summed up: the plane, a cluster, or a rack or a job of it. */
    private record Group(String scope, String cluster, String name) implements Comparable<Group> {

        @Override
        public int compareTo(Group other) {
            return Comparator.comparing(Group::scope).thenComparing(Group::cluster)
                    .thenComparing(Group::name).compare(this, other);
        }

        private String key() {
            return cluster.isEmpty() ? scope
                    : name.isEmpty() ? cluster : cluster + '/' + scope + '/' + name;
        }

        private JsonText head() {
            return new JsonText().open().field("form", 1).field("scope", scope)
                    .field("cluster", cluster.isEmpty() ? null : cluster)
                    .field(scope.equals("job") ? "job" : "rack", name.isEmpty() ? null : name);
        }
    }
}
