package io.tidepool.examples;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.ql.DriverFactory;
import org.apache.hadoop.hive.ql.IDriver;
import org.apache.hadoop.hive.ql.session.SessionState;

/**
 * Hive over external tables: {@code HiveTables DIRECTORY WORK PASSES}. The table {@code lines} is
 * CSV that is there (number, group, value, name) in DIRECTORY/lines; its rows are written to a table
 * in ORC and one in Parquet, and each is asked PASSES times. WORK is a local directory for the
 * metastore.
 */
public final class HiveTables {
    private static final String COLUMNS = "(id BIGINT, grp BIGINT, val BIGINT, name STRING)";

    private final IDriver driver;

    private HiveTables(HiveConf conf) {
        driver = DriverFactory.newDriver(conf);
    }

    public static void main(String[] arguments) throws Exception {
        String directory = arguments[0];
        int passes = Integer.parseInt(arguments[2]);
        HiveConf conf = configuration(arguments[1]);
        SessionState session = SessionState.start(new SessionState(conf));
        try {
            HiveTables hive = new HiveTables(conf);
            hive.run("CREATE EXTERNAL TABLE lines " + COLUMNS
                    + " ROW FORMAT DELIMITED FIELDS TERMINATED BY ','"
                    + " STORED AS TEXTFILE LOCATION '" + directory + "/lines'");
            for (String format : List.of("orc", "parquet")) {
                hive.run("CREATE EXTERNAL TABLE " + format + "_facts " + COLUMNS + " STORED AS "
                        + format + " LOCATION '" + directory + "/" + format + "'");
                hive.timed(format + ", write",
                        () -> hive.run("INSERT INTO " + format + "_facts SELECT * FROM lines"));
                for (int pass = 1; pass <= passes; pass++) {
                    String answer =
                            hive.timed(format + ", question " + pass, () -> hive.ask(format));
                    System.out.println("ROW " + format + " " + answer);
                }
            }
        } finally {
            session.close();
        }
    }

    private static HiveConf configuration(String work) {
        HiveConf conf = new HiveConf(HiveTables.class);
        conf.set("javax.jdo.option.ConnectionURL",
                "jdbc:derby:;databaseName=" + work + "/metastore;create=true");
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("metastore.warehouse.dir", "file://" + work + "/warehouse");
        conf.set("hive.exec.scratchdir", "file://" + work + "/scratch");
        conf.set("hive.exec.local.scratchdir", work + "/local");
        conf.set("hive.execution.engine", "tez");
        conf.set("hive.security.authorization.manager", "");
        // Answers come from the rows, not from what was counted while they were written.
        conf.set("hive.compute.query.using.stats", "false");
        conf.set("hive.stats.autogather", "false");
        // Its loader opens the metastore a second time, which closes the first one.
        conf.set("hive.query.reexecution.enabled", "false");
        conf.set("hive.query.reexecution.stats.persist.scope", "query");
        conf.set("tez.local.mode", "true");
        conf.set("tez.runtime.optimize.local.fetch", "true");
        conf.set("tez.staging-dir", "file://" + work + "/staging");
        return conf;
    }

    private List<String> run(String statement) throws Exception {
        driver.run(statement);
        List<String> rows = new ArrayList<>();
        driver.getResults(rows);
        return rows;
    }

    private String ask(String format) throws Exception {
        String facts = format + "_facts";
        String groups = "SELECT grp, count(*) AS n, sum(val) AS s FROM " + facts + " GROUP BY grp";
        List<String> questions = List.of(
                "SELECT count(*), sum(val) FROM " + facts,
                "SELECT sum(id) FROM " + facts + " WHERE name = 'name-13'",
                "SELECT sum(s) FROM (" + groups + ") g WHERE grp < 10",
                "SELECT count(*) FROM " + facts + " a JOIN (" + groups
                        + ") g ON a.grp = g.grp WHERE a.id < 100000 AND g.n > 0");
        List<String> answers = new ArrayList<>();
        for (String question : questions) {
            answers.add(String.join(" ", run(question)).replace('\t', ' '));
        }
        return String.join(" ", answers);
    }

    /** What is timed. */
    private interface Body<T> {
        T run() throws Exception;
    }

    private <T> T timed(String name, Body<T> body) throws Exception {
        long started = System.nanoTime();
        T result = body.run();
        System.out.printf("STEP %.3f %s%n", (System.nanoTime() - started) / 1e9, name);
        System.out.flush();
        return result;
    }
}
