package io.tidepool.examples;

import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * A batch job: reads the CSV files of a directory (number, group, value), writes count and sum of
 * each group as CSV to another: {@code FlinkCount INPUT OUTPUT}.
 */
public final class FlinkCount {
    private FlinkCount() {}

    public static void main(String[] arguments) throws Exception {
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        tables.executeSql("CREATE TABLE facts (id BIGINT, grp BIGINT, val BIGINT) WITH ("
                + "'connector' = 'filesystem', 'format' = 'csv', 'path' = '"
                + arguments[0] + "')");
        tables.executeSql("CREATE TABLE answers (grp BIGINT, n BIGINT, s BIGINT) WITH ("
                + "'connector' = 'filesystem', 'format' = 'csv', 'path' = '"
                + arguments[1] + "')");
        tables.executeSql("INSERT INTO answers"
                + " SELECT grp, count(*), sum(val) FROM facts GROUP BY grp").await();
        System.out.println("DONE");
    }
}
