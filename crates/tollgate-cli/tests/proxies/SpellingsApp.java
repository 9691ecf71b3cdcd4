import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Map;
import org.apache.catalina.Context;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;

/** Servlets on Tomcat, the body naming the route. Arguments: folder, then for each port how it takes %2F. */
public class SpellingsApp {
    public static void main(String[] arguments) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[0]);
        for (int index = 1; index < arguments.length; index += 2) {
            Connector connector = new Connector();
            connector.setProperty("address", "127.0.0.1");
            connector.setPort(Integer.parseInt(arguments[index]));
            connector.setEncodedSolidusHandling(arguments[index + 1]);
            connector.setAllowBackslash(arguments[index + 1].equals("decode"));
            tomcat.getService().addConnector(connector);
        }
        Context context = tomcat.addContext("", null);
        Map<String, String> routes = Map.of(
            "/login", "login",
            "/api/health", "health",
            "/api/*", "api",
            "/search/*", "search",
            "/pair/*", "pair",
            "/", "other");
        routes.forEach((pattern, name) -> {
            Tomcat.addServlet(context, name, new HttpServlet() {
                @Override
                protected void service(HttpServletRequest request, HttpServletResponse response)
                        throws IOException {
                    String rest = String.valueOf(request.getPathInfo());
                    boolean fits = !name.equals("pair") || rest.matches("(?s)/[^/]+/[^/]+");
                    response.getWriter().print("<" + (fits ? name : "other") + ">");
                }
            });
            context.addServletMappingDecoded(pattern, name);
        });
        tomcat.start();
        tomcat.getServer().await();
    }
}
